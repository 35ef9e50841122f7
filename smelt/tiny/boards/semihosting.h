/* The calls of semihosting, by which a program uses services of its emulator or debugger. Their numbers are the same on
   Arm and RISC-V. */
#ifndef SEMIHOSTING_H
#define SEMIHOSTING_H
#include <stdint.h>

enum { SYS_OPEN = 1, SYS_CLOSE = 2, SYS_WRITE0 = 4, SYS_WRITE = 5, SYS_READ = 6, SYS_EXIT_EXTENDED = 0x20 };

#ifdef __riscv
static inline int semihosting(int operation, const void *block)
{
    register int a0 __asm__("a0") = operation;
    register const void *a1 __asm__("a1") = block;
    /* three uncompressed instructions on one page mark a semihosting call */
    __asm__ volatile(".option push\n.option norvc\n.balign 16\n"
                     "slli zero, zero, 0x1f\nebreak\nsrai zero, zero, 7\n.option pop"
                     : "+r"(a0) : "r"(a1) : "memory");
    return a0;
}
#else
static inline int semihosting(int operation, const void *block)
{
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = block;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}
#endif

#endif
