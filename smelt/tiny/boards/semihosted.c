/* The board's files, console, exit and reports of faults, by semihosting. */
#include "board.h"
#include "fault.h"
#include "semihosting.h"

static uint32_t length(const char *text)
{
    uint32_t n = 0;
    while (text[n])
        n++;
    return n;
}

void board_write(const char *text)
{
    semihosting(SYS_WRITE0, text);
}

int board_open(const char *name, enum board_mode mode)
{
    const uint32_t block[3] = {(uint32_t)name, (uint32_t)mode, length(name)};
    return semihosting(SYS_OPEN, block);
}

uint32_t board_read(int handle, void *to, uint32_t bytes)
{
    const uint32_t block[3] = {(uint32_t)handle, (uint32_t)to, bytes};
    return bytes - (uint32_t)semihosting(SYS_READ, block);
}

uint32_t board_save(int handle, const void *from, uint32_t bytes)
{
    const uint32_t block[3] = {(uint32_t)handle, (uint32_t)from, bytes};
    return bytes - (uint32_t)semihosting(SYS_WRITE, block);
}

void board_close(int handle)
{
    const uint32_t block[1] = {(uint32_t)handle};
    semihosting(SYS_CLOSE, block);
}

void board_exit(int code)
{
    const uint32_t block[2] = {0x20026, (uint32_t)code}; /* ADP_Stopped_ApplicationExit, with the exit code */
    semihosting(SYS_EXIT_EXTENDED, block);
    for (;;)
        ;
}

static void write_hex(const char *label, uint32_t value)
{
    char text[9];
    for (int i = 0; i < 8; i++)
        text[i] = "0123456789abcdef"[value >> (28 - 4 * i) & 15];
    text[8] = 0;
    board_write(label);
    board_write(text);
}

void board_fault(uint32_t cause, uint32_t pc, uint32_t address, uint32_t sp)
{
    write_hex("\nBOARD FAULT cause=", cause);
    write_hex(" pc=", pc);
    write_hex(" address=", address);
    write_hex(" sp=", sp);
    board_write("\n");
    board_exit(BOARD_FAULT_EXIT);
}
