/* The interface of a program to its board: a console, files of the emulator's machine, counters, and the exit. */
#ifndef BOARD_H
#define BOARD_H
#include <stdint.h>

enum board_mode { BOARD_READ = 1, BOARD_WRITE = 5 };

/* Writes text to the console. */
void board_write(const char *text);
/* Opens a file; returns a handle, which is negative if the file cannot be opened. */
int board_open(const char *name, enum board_mode mode);
/* Reads from a file or saves to it; both return the number of bytes that they have transferred. */
uint32_t board_read(int handle, void *to, uint32_t bytes);
uint32_t board_save(int handle, const void *from, uint32_t bytes);
void board_close(int handle);
/* Ends the program. A code other than 0 reports a failure. */
void board_exit(int code);
/* The maximum number of bytes of stack in use so far; 0 if it is not measured. */
uint32_t board_stack_high_water(void);
/* The number of instructions since the start, if an emulator counts them (in steps of 40 on Arm); otherwise 0. */
uint64_t board_instructions(void);

#endif
