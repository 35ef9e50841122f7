/* The interface between start-up code and the code that reports faults. */
#ifndef FAULT_H
#define FAULT_H
#include <stdint.h>

#define BOARD_FAULT_EXIT 97
#define STACK_PAINT 0xA5A5A5A5u
#define NO_ADDRESS 0xFFFFFFFFu

/* Reports a fault and ends the program. cause: CFSR on Arm, mcause on RISC-V. pc and address: NO_ADDRESS if the
   processor does not report them. */
void board_fault(uint32_t cause, uint32_t pc, uint32_t address, uint32_t sp);

/* Symbols of the linker script. */
extern uint32_t _flash_origin[], _flash_end[], _ram_origin[], _ram_end[];
extern uint32_t _stack_low[], _stack_high[], _data_load[], _data_low[], _data_high[], _bss_low[], _bss_high[];

/* Prepares the memory before main: initialises data, clears .bss and paints the free stack below `sp`, the present
   stack pointer. */
void board_prepare_memory(uint32_t *sp);

#endif
