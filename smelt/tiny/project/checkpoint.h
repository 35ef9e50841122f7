/* Saves and loads the trained parameters. There are two records. A save overwrites the older one, so that the newer one
   remains if the power fails meanwhile. */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

enum checkpoint_status {
    CHECKPOINT_OK = 0,
    CHECKPOINT_NONE = 1,    /* no record exists */
    CHECKPOINT_DAMAGED = 2, /* records exist, but none is whole and of this model and version */
    CHECKPOINT_FAILED = 3,  /* the record could not be written */
};

enum checkpoint_status model_save(void);
/* Loads the newest whole record; if there is none, model_trained stays unchanged. */
enum checkpoint_status model_load(void);

#endif
