/* Start-up of a 32-bit RISC-V core in machine mode: memory, the PMP as a guard, and the trap handler that reports
   faults. */
#include "board.h"
#include "fault.h"

int main(void);

__attribute__((used)) static void trapped(uint32_t cause, uint32_t pc, uint32_t address, uint32_t sp)
{
    board_fault(cause, pc, address, sp);
}

/* The trap handler. A full stack is one cause of faults, so the handler resets the stack pointer first. */
__attribute__((naked, aligned(4))) static void on_trap(void)
{
    __asm__ volatile("mv a3, sp\n"
                     "csrr a0, mcause\n"
                     "csrr a1, mepc\n"
                     "csrr a2, mtval\n"
                     "la sp, _stack_high\n"
                     "j trapped");
}

/* Sets the PMP. Locked entries apply to machine mode as well. An entry covers the addresses from that of the entry
   before it to its own. Machine mode may access addresses that no entry covers, so the last entry covers all the
   others. */
static void guard(void)
{
    enum { READ = 1, WRITE = 2, EXECUTE = 4, RANGE = 1 << 3, LOCKED = 1 << 7 };
    const uint32_t nothing = RANGE | LOCKED;
    __asm__ volatile("csrw pmpaddr0, %0" ::"r"((uint32_t)_flash_origin >> 2));
    __asm__ volatile("csrw pmpaddr1, %0" ::"r"((uint32_t)_flash_end >> 2));
    __asm__ volatile("csrw pmpaddr2, %0" ::"r"((uint32_t)_ram_origin >> 2));
    __asm__ volatile("csrw pmpaddr3, %0" ::"r"((uint32_t)_ram_end >> 2));
    __asm__ volatile("csrw pmpaddr4, %0" ::"r"(0xFFFFFFFFu));
    __asm__ volatile("csrw pmpcfg1, %0" ::"r"(nothing));
    __asm__ volatile("csrw pmpcfg0, %0" ::"r"(nothing | (nothing | READ | EXECUTE) << 8 | nothing << 16
                                              | (nothing | READ | WRITE) << 24));
}

__attribute__((noinline, used)) static void start(uint32_t *sp)
{
    __asm__ volatile("csrw mtvec, %0" ::"r"(on_trap));
    __asm__ volatile("csrs mstatus, %0\ncsrw fcsr, zero" ::"r"(1u << 13)); /* enables the FPU, rounding to nearest even */
    board_prepare_memory(sp);
    guard();
    board_exit(main());
}

__attribute__((naked, section(".vectors"), used)) void reset(void)
{
    __asm__ volatile(".option push\n.option norelax\nla gp, __global_pointer$\n.option pop\n"
                     "la sp, _stack_high\n"
                     "mv a0, sp\n"
                     "j start");
}

uint64_t board_instructions(void)
{
    uint32_t high, low, again;
    do {
        __asm__ volatile("csrr %0, minstreth\ncsrr %1, minstret\ncsrr %2, minstreth"
                         : "=r"(high), "=r"(low), "=r"(again));
    } while (high != again);
    return (uint64_t)high << 32 | low;
}
