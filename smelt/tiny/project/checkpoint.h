/* Keeps what has been trained. There are two records: a save writes over the older one, so that the newer one is there
   still if power fails meanwhile. */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

enum checkpoint_status {
    CHECKPOINT_OK = 0,
    CHECKPOINT_NONE = 1,    /* nothing was saved yet */
    CHECKPOINT_DAMAGED = 2, /* there are records, and none of them is whole and of this model and version */
    CHECKPOINT_FAILED = 3,  /* it could not be written */
};

enum checkpoint_status model_save(void);
/* Reads the newest record that is whole; where there is none, model_trained stays as it is. */
enum checkpoint_status model_load(void);

#endif
