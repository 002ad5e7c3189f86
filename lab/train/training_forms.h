// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: more ways to state and ask for a fact than the tasks of lab/eval/tasks/task.h have: what models/demo knows besides.
 *
 * Design: a form is a task with a needle, said in other words: what is hidden where, and how long the text is, the task
 *         decides.
 */
#pragma once

#include "lab/eval/tasks/task.h"

struct sl_training_form {
    const char *name; // "code"
    const char *task; // that is said in other words
    const char *fact; // {key} and {value} are put in
    const char *question;
    const char *answer;
};

const struct sl_training_form *sl_training_forms(void); // all, up to one whose name is NULL
const struct sl_training_form *sl_training_form_find(const char *name);

// Put the sample of form->task into the words of the form. SL_ERR_EXHAUSTED.
enum sl_status sl_training_form_apply(const struct sl_training_form *form, struct sl_sample *sample,
                                      struct sl_error *err);
