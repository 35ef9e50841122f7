/* The board's interface on the development machine, to compare and try projects. */
#include "board.h"
#include <stdio.h>
#include <stdlib.h>

enum { MAX_FILES = 16 };
static FILE *files[MAX_FILES];

void board_write(const char *text)
{
    fputs(text, stdout);
}

int board_open(const char *name, enum board_mode mode)
{
    for (int handle = 0; handle < MAX_FILES; handle++)
        if (!files[handle]) {
            files[handle] = fopen(name, mode == BOARD_READ ? "rb" : "wb");
            return files[handle] ? handle : -1;
        }
    return -1;
}

uint32_t board_read(int handle, void *to, uint32_t bytes)
{
    return (uint32_t)fread(to, 1, bytes, files[handle]);
}

uint32_t board_save(int handle, const void *from, uint32_t bytes)
{
    return (uint32_t)fwrite(from, 1, bytes, files[handle]);
}

void board_close(int handle)
{
    fclose(files[handle]);
    files[handle] = NULL;
}

void board_exit(int code)
{
    fflush(stdout);
    exit(code);
}

uint32_t board_stack_high_water(void)
{
    return 0;
}

uint64_t board_instructions(void)
{
    return 0;
}
