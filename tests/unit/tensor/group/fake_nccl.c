// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a libnccl for test_nccl.c: sums of floats in the host's memory, in the order of ranks from the last to the first. Calls do not block, as
 *          NCCL's do not where that was asked for.
 *
 *     FAKE_LACKS    without ncclCommAbort
 *     FAKE_VERSION  says that it is this
 *     FAKE_FAILS    makes no communicator
 *     FAKE_HANGS    the last rank's sums never end
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/cuda/group/nccl.h"

#ifndef FAKE_VERSION
#define FAKE_VERSION 22809
#endif

enum { SUCCESS = NCCL_SUCCESS, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, MAX_RANKS = 16 };

// What the communicators of one identity share.
struct clique {
    struct clique *next;
    struct nccl_id id;
    int size, n_open;
    int n_come;
    float *x[MAX_RANKS]; // of the sum at hand
    size_t n;
    uint64_t n_sums;
};

struct nccl_comm {
    struct clique *clique;
    int rank;
    uint64_t n_sums; // that this rank has begun
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct clique *cliques;
static uint64_t n_ids;

int ncclGetVersion(int *version);
int ncclGetVersion(int *version) {
    *version = FAKE_VERSION;
    return SUCCESS;
}

const char *ncclGetErrorString(int result);
const char *ncclGetErrorString(int result) {
    return result == INTERNAL_ERROR ? "the fake was made to fail" : "?";
}

int ncclGetUniqueId(struct nccl_id *id);
int ncclGetUniqueId(struct nccl_id *id) {
    pthread_mutex_lock(&lock);
    n_ids++;
    memset(id, 0, sizeof *id);
    memcpy(id->bytes, &n_ids, sizeof n_ids);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int ncclCommInitRankConfig(struct nccl_comm **comm_out, int size, struct nccl_id id, int rank,
                           struct nccl_config *config);
int ncclCommInitRankConfig(struct nccl_comm **comm_out, int size, struct nccl_id id, int rank,
                           struct nccl_config *config) {
    if (config->size != 24 || config->magic != 0xcafebeefu || config->version != 21400 || config->blocking != 0) {
        return INVALID_ARGUMENT;
    }
#ifdef FAKE_FAILS
    (void)comm_out, (void)size, (void)id, (void)rank;
    return INTERNAL_ERROR;
#else
    pthread_mutex_lock(&lock);
    struct clique *clique = cliques;
    while (clique != NULL && memcmp(&clique->id, &id, sizeof id) != 0) {
        clique = clique->next;
    }
    if (clique == NULL) {
        clique = calloc(1, sizeof *clique);
        *clique = (struct clique){.next = cliques, .id = id, .size = size};
        cliques = clique;
    }
    clique->n_open++;
    *comm_out = calloc(1, sizeof **comm_out);
    **comm_out = (struct nccl_comm){clique, rank, 0};
    pthread_mutex_unlock(&lock);
    return NCCL_IN_PROGRESS;
#endif
}

// A communicator is made when all are there; a sum is done when all have come.
int ncclCommGetAsyncError(struct nccl_comm *comm, int *result);
int ncclCommGetAsyncError(struct nccl_comm *comm, int *result) {
    pthread_mutex_lock(&lock);
    struct clique *clique = comm->clique;
    bool done = comm->n_sums == 0 ? clique->n_open == clique->size : clique->n_sums >= comm->n_sums;
    *result = done ? SUCCESS : NCCL_IN_PROGRESS;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

static int end(struct nccl_comm *comm, int aborted) {
    void (*ended)(int) = NULL;
    void *found = dlsym(RTLD_DEFAULT, "fake_nccl_ended"); // of the program
    if (found != NULL) {
        memcpy(&ended, &found, sizeof ended);
        ended(aborted);
    }
    pthread_mutex_lock(&lock);
    struct clique *clique = comm->clique;
    if (--clique->n_open == 0) {
        struct clique **at = &cliques;
        while (*at != clique) {
            at = &(*at)->next;
        }
        *at = clique->next;
        free(clique);
    }
    free(comm);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int ncclCommDestroy(struct nccl_comm *comm);
int ncclCommDestroy(struct nccl_comm *comm) {
    return end(comm, 0);
}

#ifndef FAKE_LACKS
int ncclCommAbort(struct nccl_comm *comm);
int ncclCommAbort(struct nccl_comm *comm) {
    return end(comm, 1);
}
#endif

static void add_up(struct clique *clique) {
    for (size_t i = 0; i < clique->n; i++) {
        float sum = clique->x[clique->size - 1][i];
        for (int r = clique->size - 2; r >= 0; r--) {
            sum += clique->x[r][i];
        }
        for (int r = 0; r < clique->size; r++) {
            clique->x[r][i] = sum;
        }
    }
}

int ncclAllReduce(const void *x, void *out, size_t n, int type, int operation, struct nccl_comm *comm, void *stream);
int ncclAllReduce(const void *x, void *out, size_t n, int type, int operation, struct nccl_comm *comm, void *stream) {
    struct clique *clique = comm->clique;
    void (*before)(void *) = NULL;
    void *found = dlsym(RTLD_DEFAULT, "fake_nccl_before"); // of the program: what is queued is done
    if (found == NULL || x != out || type != NCCL_FLOAT32 || operation != NCCL_SUM) {
        return INVALID_ARGUMENT;
    }
    memcpy(&before, &found, sizeof before);
    before(stream);
    pthread_mutex_lock(&lock);
    comm->n_sums++;
#ifdef FAKE_HANGS
    bool comes = comm->rank < clique->size - 1;
#else
    bool comes = true;
#endif
    if (comes) {
        clique->x[comm->rank] = out;
        clique->n = n;
        clique->n_come++;
    }
    if (clique->n_come == clique->size) {
        add_up(clique);
        clique->n_come = 0;
        clique->n_sums++;
    }
    bool done = clique->n_sums >= comm->n_sums;
    pthread_mutex_unlock(&lock);
    return done ? SUCCESS : NCCL_IN_PROGRESS;
}
