/* What a program has of its board: a console, files of the machine that emulates it, counters, and how to end. */
#ifndef BOARD_H
#define BOARD_H
#include <stdint.h>

enum board_mode { BOARD_READ = 1, BOARD_WRITE = 5 };

/* Text on the console. */
void board_write(const char *text);
/* A handle, negative where the file is not to be had. */
int board_open(const char *name, enum board_mode mode);
/* The number of bytes that were moved. */
uint32_t board_read(int handle, void *to, uint32_t bytes);
uint32_t board_save(int handle, const void *from, uint32_t bytes);
void board_close(int handle);
/* Does not return. A code other than 0 tells a failure. */
void board_exit(int code);
/* The most bytes of stack that were in use so far; 0 where it is not measured. */
uint32_t board_stack_high_water(void);
/* Instructions since the start under an emulator that counts them, in steps of 40 on Arm; 0 where they are not. */
uint64_t board_instructions(void);

#endif
