// SPDX-License-Identifier: Apache-2.0
#include "kvstore/remote_kv/answers.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/locked.h"

#define ALIGNMENT  64
#define LEAST_LOG2 9 // 512 bytes: a refusal
#define N_SIZES    32

// The header in front of the caller's memory.
struct block {
    _Alignas(ALIGNMENT) struct block *next;
    struct sl_answers *answers;
    int size; // its memory has 1 << (LEAST_LOG2 + size) bytes
};

struct sl_answers {
    size_t most_bytes, kept_bytes;
    pthread_mutex_t mutex;
    struct block *lists[N_SIZES];
    size_t out_bytes, listed_bytes;
};

enum sl_status sl_answers_create(size_t most_bytes, size_t kept_bytes, struct sl_answers **answers_out,
                                 struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_answers, answers, err, "answers: out of memory");
    answers->most_bytes = most_bytes;
    answers->kept_bytes = kept_bytes;
    pthread_mutex_init(&answers->mutex, NULL);
    *answers_out = answers;
    return SL_OK;
}

void sl_answers_destroy(struct sl_answers **answers_inout) {
    SL_TAKE_OR_RETURN(answers, answers_inout);
    assert(answers->out_bytes == 0);
    for (int i = 0; i < N_SIZES; i++) {
        while (answers->lists[i]) {
            struct block *block = answers->lists[i];
            answers->lists[i] = block->next;
            free(block);
        }
    }
    pthread_mutex_destroy(&answers->mutex);
    free(answers);
}

static size_t bytes_of(int size) {
    return (size_t)1 << (LEAST_LOG2 + size);
}

void *sl_answers_take(struct sl_answers *answers, size_t bytes) {
    int size = 0;
    while (size < N_SIZES && bytes_of(size) < bytes) {
        size++;
    }
    if (size == N_SIZES) {
        return NULL;
    }
    pthread_mutex_lock(&answers->mutex);
    bool allowed = bytes_of(size) <= answers->most_bytes - answers->out_bytes;
    struct block *block = allowed ? answers->lists[size] : NULL;
    if (block) {
        answers->lists[size] = block->next;
        answers->listed_bytes -= bytes_of(size);
    }
    answers->out_bytes += allowed ? bytes_of(size) : 0;
    pthread_mutex_unlock(&answers->mutex);
    if (!allowed) {
        return NULL;
    }
    if (!block) {
        block = aligned_alloc(ALIGNMENT, sizeof *block + bytes_of(size));
        if (!block) {
            SL_LOCKED(&answers->mutex);
            answers->out_bytes -= bytes_of(size);
            return NULL;
        }
        block->answers = answers;
        block->size = size;
    }
    return block + 1;
}

void sl_answers_give(void *answer) {
    struct block *block = (struct block *)answer - 1;
    struct sl_answers *answers = block->answers;
    size_t bytes = bytes_of(block->size);
    pthread_mutex_lock(&answers->mutex);
    answers->out_bytes -= bytes;
    bool keep = answers->listed_bytes + bytes <= answers->kept_bytes;
    if (keep) {
        block->next = answers->lists[block->size];
        answers->lists[block->size] = block;
        answers->listed_bytes += bytes;
    }
    pthread_mutex_unlock(&answers->mutex);
    if (!keep) {
        free(block);
    }
}
