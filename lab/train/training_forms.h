// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: further wordings of facts and questions beside those of lab/tasks/task.h, which models/demo was also
 *          trained on.
 *
 * Design: a form is a task with a needle, in other words: the task decides what is hidden where, and how long the
 *         text is.
 */
#pragma once

#include "lab/tasks/task.h"

struct sl_training_form {
    const char *name; // "code"
    const char *task; // the task that it rewords
    const char *fact; // {key} and {value} are replaced
    const char *question;
    const char *answer;
};

const struct sl_training_form *sl_training_forms(void); // all, up to one whose name is NULL
const struct sl_training_form *sl_training_form_find(const char *name);

// Rewords the sample of form->task. SL_ERR_EXHAUSTED: no memory.
enum sl_status sl_training_form_apply(const struct sl_training_form *form, struct sl_sample *sample,
                                      struct sl_error *err);
