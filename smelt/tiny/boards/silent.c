/* A board of which only the processor is known: it has no console and no files. Replace these functions by those for
   your board. */
#include "board.h"
#include "fault.h"

void board_write(const char *text)
{
    (void)text;
}

int board_open(const char *name, enum board_mode mode)
{
    (void)name, (void)mode;
    return -1;
}

uint32_t board_read(int handle, void *to, uint32_t bytes)
{
    (void)handle, (void)to, (void)bytes;
    return 0;
}

uint32_t board_save(int handle, const void *from, uint32_t bytes)
{
    (void)handle, (void)from, (void)bytes;
    return 0;
}

void board_close(int handle)
{
    (void)handle;
}

void board_exit(int code)
{
    (void)code;
    for (;;)
        ;
}

void board_fault(uint32_t cause, uint32_t pc, uint32_t address, uint32_t sp)
{
    (void)cause, (void)pc, (void)address, (void)sp;
    board_exit(BOARD_FAULT_EXIT);
}
