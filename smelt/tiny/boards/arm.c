/* Start-up of a Cortex-M4 or M7: vectors, memory, the MPU as a guard, SysTick as a counter, and the handler that
   reports faults. */
#include "board.h"
#include "fault.h"

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define CPACR REGISTER(0xE000ED88)
#define CCR REGISTER(0xE000ED14)
#define SHCSR REGISTER(0xE000ED24)
#define CFSR REGISTER(0xE000ED28)
#define MMFAR REGISTER(0xE000ED34)
#define BFAR REGISTER(0xE000ED38)
#define MPU_CTRL REGISTER(0xE000ED94)
#define MPU_RNR REGISTER(0xE000ED98)
#define MPU_RBAR REGISTER(0xE000ED9C)
#define MPU_RASR REGISTER(0xE000EDA0)
#define SYST_CSR REGISTER(0xE000E010)
#define SYST_RVR REGISTER(0xE000E014)
#define SYST_CVR REGISTER(0xE000E018)
#define SYST_MOST 0xFFFFFFu
#define INSTRUCTIONS_PER_TICK 40 /* 25 MHz, and an instruction takes 1 ns of the emulator's time */

int main(void);
void reset(void);
void faulted(uint32_t *sp, uint32_t pc);

static volatile uint32_t wraps;

/* The handler of faults. A full stack is one cause of them, so nothing may be pushed before the handler has set a new
   stack pointer. The frame that the processor has pushed is read only if it lies within the stack. */
__attribute__((naked)) static void on_fault(void)
{
    __asm__ volatile("mov r0, sp\n"
                     "mov r1, #-1\n"
                     "ldr r2, =_stack_low\n"
                     "cmp r0, r2\n"
                     "blo 1f\n"
                     "ldr r2, =_stack_high - 32\n"
                     "cmp r0, r2\n"
                     "bhi 1f\n"
                     "ldr r1, [r0, #24]\n"
                     "1: ldr r2, =_stack_high\n"
                     "mov sp, r2\n"
                     "b faulted\n"
                     ".ltorg");
}

__attribute__((used)) void faulted(uint32_t *sp, uint32_t pc)
{
    const uint32_t cause = CFSR;
    uint32_t address = NO_ADDRESS;
    if (cause & 1u << 7)
        address = MMFAR;
    else if (cause & 1u << 15)
        address = BFAR;
    board_fault(cause, pc, address, (uint32_t)sp);
}

static void on_tick(void)
{
    wraps++;
}

__attribute__((section(".vectors"), used)) static void (*const vectors[16])(void) = {
    (void (*)(void))_stack_high, reset, on_fault, on_fault, on_fault, on_fault, on_fault, 0, 0, 0, 0,
    on_fault, on_fault, 0, on_fault, on_tick,
};

/* Sets a region of the MPU. Its size is a power of two, and eighths of it can be left out: the start of the region is
   exact to the byte, its end to such an eighth. */
static void guard(uint32_t number, uint32_t origin, uint32_t end, uint32_t access, uint32_t no_execute)
{
    uint32_t log = 8, without = 0;
    while ((1u << log) < end - origin)
        log++;
    for (uint32_t part = 0; part < 8; part++)
        if (part * (1u << (log - 3)) >= end - origin)
            without |= 1u << part;
    MPU_RNR = number;
    MPU_RBAR = origin;
    MPU_RASR = no_execute << 28 | access << 24 | 1u << 17 | without << 8 | (log - 1) << 1 | 1u;
}

__attribute__((noinline, used)) static void start(uint32_t *sp)
{
    CPACR |= 0xFu << 20; /* enables the FPU */
    __asm__ volatile("dsb\nisb");
    board_prepare_memory(sp);
    guard(0, (uint32_t)_flash_origin, (uint32_t)_flash_end, 6, 0); /* read and execute */
    guard(1, (uint32_t)_ram_origin, (uint32_t)_ram_end, 3, 1);     /* read and write */
    MPU_CTRL = 1;                                                  /* accesses to other addresses fault */
    SHCSR |= 7u << 16;
    CCR |= 1u << 4; /* a division by zero faults */
    SYST_RVR = SYST_MOST;
    SYST_CVR = 0;
    SYST_CSR = 7;
    __asm__ volatile("dsb\nisb");
    board_exit(main());
}

__attribute__((naked)) void reset(void)
{
    __asm__ volatile("ldr r0, =_stack_high\nmov sp, r0\nb start\n.ltorg");
}

uint64_t board_instructions(void)
{
    uint32_t before, ticks;
    do {
        before = wraps;
        ticks = (SYST_MOST + 1u - SYST_CVR) & SYST_MOST; /* the counter wraps from 0 to SYST_MOST and counts down */
    } while (before != wraps);
    return ((uint64_t)before * (SYST_MOST + 1u) + ticks) * INSTRUCTIONS_PER_TICK;
}
