/* Executes the commands in a file, one after another, and writes their results, for tests and demonstrations. In a
   product, replace this file: fill model_input(), call train_step() or infer(), and sometimes model_save(). */
#include "board.h"
#include "checkpoint.h"
#include "model.h"

enum { TRAIN = 'T', INFER = 'I', SAVE = 'S', LOAD = 'L', DUMP = 'D' };

struct command {
    uint32_t what, label;
    float rate;
};

static void write_number(const char *name, uint64_t value)
{
    char text[22];
    int at = 21;
    text[at] = 0;
    text[--at] = '\n';
    do
        text[--at] = (char)('0' + value % 10);
    while (value /= 10);
    board_write(name);
    board_write(text + at);
}

static int put(int to, const void *from, uint32_t bytes)
{
    return board_save(to, from, bytes) == bytes;
}

static int answer(int to, const struct command *command)
{
    const uint64_t before = board_instructions();
    if (command->what == TRAIN) {
        const float loss = train_step((int)command->label, command->rate);
        write_number("train_instructions=", board_instructions() - before);
        return put(to, &loss, sizeof loss) && put(to, model_logits(), MODEL_CLASSES * sizeof(float));
    }
    if (command->what == INFER) {
        const int32_t class_ = infer();
        write_number("infer_instructions=", board_instructions() - before);
        return put(to, &class_, sizeof class_) && put(to, model_logits(), MODEL_CLASSES * sizeof(float));
    }
    if (command->what == SAVE || command->what == LOAD) {
        const int32_t status = command->what == SAVE ? (int32_t)model_save() : (int32_t)model_load();
        return put(to, &status, sizeof status);
    }
    return command->what == DUMP && put(to, &model_trained, sizeof model_trained);
}

int main(void)
{
    struct command command;
    const int from = board_open("commands.bin", BOARD_READ), to = board_open("answers.bin", BOARD_WRITE);
    if (from < 0 || to < 0) {
        board_write("commands.bin cannot be read or answers.bin not written\n");
        return 1;
    }
    while (board_read(from, &command, sizeof command) == sizeof command) {
        const int image = command.what == TRAIN || command.what == INFER;
        if (image && board_read(from, model_input(), MODEL_INPUT_BYTES) != MODEL_INPUT_BYTES) {
            board_write("an image is not whole\n");
            return 2;
        }
        if (command.what == TRAIN && command.label >= MODEL_CLASSES) {
            board_write("a label is no class\n");
            return 4;
        }
        if (!answer(to, &command)) {
            board_write("a command failed\n");
            return 3;
        }
    }
    board_close(to);
    write_number("stack_bytes=", board_stack_high_water());
    return 0;
}
