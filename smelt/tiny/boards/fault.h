/* Between start-up code and what tells of faults. */
#ifndef FAULT_H
#define FAULT_H
#include <stdint.h>

#define BOARD_FAULT_EXIT 97
#define STACK_PAINT 0xA5A5A5A5u
#define NO_ADDRESS 0xFFFFFFFFu

/* Tells what happened and ends the program. cause: CFSR on Arm, mcause on RISC-V; pc and address: NO_ADDRESS where the
   processor does not say. */
void board_fault(uint32_t cause, uint32_t pc, uint32_t address, uint32_t sp);

/* From the linker script. */
extern uint32_t _flash_origin[], _flash_end[], _ram_origin[], _ram_end[];
extern uint32_t _stack_low[], _stack_high[], _data_load[], _data_low[], _data_high[], _bss_low[], _bss_high[];

/* Before main: data, zeros and paint. `sp` is where the stack is now. */
void board_prepare_memory(uint32_t *sp);

#endif
