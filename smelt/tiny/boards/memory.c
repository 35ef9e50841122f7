/* The memory functions that a compiler requires of any C program, and the preparation of memory before main. */
#include <stddef.h>
#include "board.h"
#include "fault.h"

void *memcpy(void *restrict to, const void *restrict from, size_t bytes)
{
    unsigned char *t = to;
    const unsigned char *f = from;
    if ((((uintptr_t)t | (uintptr_t)f) & 3) == 0)
        for (; bytes >= 4; bytes -= 4, t += 4, f += 4)
            *(uint32_t *)t = *(const uint32_t *)f;
    while (bytes--)
        *t++ = *f++;
    return to;
}

void *memmove(void *to, const void *from, size_t bytes)
{
    unsigned char *t = to;
    const unsigned char *f = from;
    if ((uintptr_t)t <= (uintptr_t)f || (uintptr_t)t >= (uintptr_t)f + bytes) {
        for (size_t i = 0; i < bytes; i++)
            t[i] = f[i];
        return to;
    }
    while (bytes--)
        t[bytes] = f[bytes];
    return to;
}

void *memset(void *to, int value, size_t bytes)
{
    unsigned char *t = to;
    const uint32_t word = (unsigned char)value * 0x01010101u;
    for (; bytes && ((uintptr_t)t & 3); bytes--)
        *t++ = (unsigned char)value;
    for (; bytes >= 4; bytes -= 4, t += 4)
        *(uint32_t *)t = word;
    while (bytes--)
        *t++ = (unsigned char)value;
    return to;
}

int memcmp(const void *a, const void *b, size_t bytes)
{
    const unsigned char *x = a, *y = b;
    for (size_t i = 0; i < bytes; i++)
        if (x[i] != y[i])
            return x[i] - y[i];
    return 0;
}

void board_prepare_memory(uint32_t *sp)
{
    const uint32_t *from = _data_load;
    for (uint32_t *to = _data_low; to < _data_high;)
        *to++ = *from++;
    for (uint32_t *to = _bss_low; to < _bss_high;)
        *to++ = 0;
    for (uint32_t *to = _stack_low; to < sp - 16;)
        *to++ = STACK_PAINT;
}

uint32_t board_stack_high_water(void)
{
    const uint32_t *lowest = _stack_low;
    while (lowest < _stack_high && *lowest == STACK_PAINT)
        lowest++;
    return (uint32_t)((uintptr_t)_stack_high - (uintptr_t)lowest);
}
