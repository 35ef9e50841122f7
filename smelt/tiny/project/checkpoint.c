/* Saves and loads records of `struct model_trained`: a header, the bytes of the struct, and a CRC of both. */
#include "checkpoint.h"
#include "board.h"
#include "model.h"
#include "project.h"

#define MAGIC 0x544C4D53u /* "SMLT" */
#define VERSION 1u

struct header {
    uint32_t magic, version, identity, sequence, bytes;
};

static const char *const names[2] = {"trained.0", "trained.1"};

/* The CRC-32 of zip and PNG, computed bit by bit, without a table. */
static uint32_t crc(uint32_t value, const void *data, uint32_t bytes)
{
    const uint8_t *p = data;
    while (bytes--) {
        value ^= *p++;
        for (int bit = 0; bit < 8; bit++)
            value = value >> 1 ^ (0xEDB88320u & (0u - (value & 1u)));
    }
    return value;
}

static uint32_t crc_of_record(const struct header *header, const void *data, uint32_t bytes)
{
    return ~crc(crc(0xFFFFFFFFu, header, sizeof *header), data, bytes);
}

enum found { ABSENT, DAMAGED, WHOLE };

/* Whether a record exists and is whole. Its bytes are read into a small buffer, so that the model's data stays
   unchanged. */
static enum found look_at(int slot, struct header *header)
{
    uint8_t part[128];
    uint32_t stored, value, left;
    enum found found = DAMAGED;
    const int handle = board_open(names[slot], BOARD_READ);
    if (handle < 0)
        return ABSENT;
    if (board_read(handle, header, sizeof *header) == sizeof *header && header->magic == MAGIC
        && header->version == VERSION && header->identity == PROJECT_IDENTITY && header->bytes == sizeof model_trained) {
        value = crc(0xFFFFFFFFu, header, sizeof *header);
        for (left = header->bytes; left;) {
            const uint32_t now = left < sizeof part ? left : (uint32_t)sizeof part;
            if (board_read(handle, part, now) != now)
                break;
            value = crc(value, part, now);
            left -= now;
        }
        if (!left && board_read(handle, &stored, sizeof stored) == sizeof stored && stored == ~value)
            found = WHOLE;
    }
    board_close(handle);
    return found;
}

/* The slot of the newest whole record, or -1. The comparison allows for sequence numbers that wrap around. */
static int newest(struct header headers[2], enum found found[2])
{
    for (int slot = 0; slot < 2; slot++)
        found[slot] = look_at(slot, &headers[slot]);
    if (found[0] == WHOLE && found[1] == WHOLE)
        return (int32_t)(headers[1].sequence - headers[0].sequence) > 0;
    return found[0] == WHOLE ? 0 : found[1] == WHOLE ? 1 : -1;
}

enum checkpoint_status model_save(void)
{
    struct header headers[2];
    enum found found[2];
    const int newer = newest(headers, found), slot = newer == 0;
    const struct header header = {
        MAGIC, VERSION, PROJECT_IDENTITY, newer < 0 ? 1 : headers[newer].sequence + 1, sizeof model_trained,
    };
    const uint32_t value = crc_of_record(&header, &model_trained, sizeof model_trained);
    const int handle = board_open(names[slot], BOARD_WRITE);
    if (handle < 0)
        return CHECKPOINT_FAILED;
    const int whole = board_save(handle, &header, sizeof header) == sizeof header
                      && board_save(handle, &model_trained, sizeof model_trained) == sizeof model_trained
                      && board_save(handle, &value, sizeof value) == sizeof value;
    board_close(handle);
    return whole ? CHECKPOINT_OK : CHECKPOINT_FAILED;
}

enum checkpoint_status model_load(void)
{
    struct header headers[2];
    enum found found[2];
    const int slot = newest(headers, found);
    if (slot < 0)
        return found[0] == ABSENT && found[1] == ABSENT ? CHECKPOINT_NONE : CHECKPOINT_DAMAGED;
    const int handle = board_open(names[slot], BOARD_READ);
    if (handle < 0)
        return CHECKPOINT_DAMAGED;
    const int whole = board_read(handle, &headers[slot], sizeof headers[slot]) == sizeof headers[slot]
                      && board_read(handle, &model_trained, sizeof model_trained) == sizeof model_trained;
    board_close(handle);
    return whole ? CHECKPOINT_OK : CHECKPOINT_DAMAGED;
}
