// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a libnccl for test_nccl.c: gathers bytes in the host's memory. Calls do not block, as NCCL's do not where that was asked for.
 *
 *     FAKE_LACKS    without ncclCommAbort
 *     FAKE_VERSION  says that it is this
 *     FAKE_FAILS    makes no communicator
 *     FAKE_HANGS    the last rank never comes to a gather
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/cuda/group/nccl.h"

#ifndef FAKE_VERSION
#define FAKE_VERSION 22809
#endif

enum { SUCCESS = NCCL_SUCCESS, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, MAX_RANKS = 16 };

// State that the communicators of one identity share.
struct clique {
    struct clique *next;
    struct nccl_id id;
    int size, n_open;
    int n_come;
    char *parts[MAX_RANKS]; // of the gather at hand
    size_t n;
    uint64_t n_gathers;
};

struct nccl_comm {
    struct clique *clique;
    int rank;
    uint64_t n_gathers; // that this rank has begun
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

// A communicator is made when all are there; a gather is done when all have come.
int ncclCommGetAsyncError(struct nccl_comm *comm, int *result);
int ncclCommGetAsyncError(struct nccl_comm *comm, int *result) {
    pthread_mutex_lock(&lock);
    struct clique *clique = comm->clique;
    bool done = comm->n_gathers == 0 ? clique->n_open == clique->size : clique->n_gathers >= comm->n_gathers;
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

static void exchange(struct clique *clique) {
    for (int r = 0; r < clique->size; r++) {
        for (int from = 0; from < clique->size; from++) {
            if (from != r) {
                size_t at = (size_t)from * clique->n;
                memcpy(clique->parts[r] + at, clique->parts[from] + at, clique->n);
            }
        }
    }
}

int ncclAllGather(const void *part, void *parts, size_t n, int type, struct nccl_comm *comm, void *stream);
int ncclAllGather(const void *part, void *parts, size_t n, int type, struct nccl_comm *comm, void *stream) {
    struct clique *clique = comm->clique;
    void (*before)(void *, size_t) = NULL;
    void *found = dlsym(RTLD_DEFAULT, "fake_nccl_before"); // of the program: what is queued is done
    if (found == NULL || (const char *)part != (char *)parts + (size_t)comm->rank * n || type != NCCL_INT8) {
        return INVALID_ARGUMENT;
    }
    memcpy(&before, &found, sizeof before);
    before(stream, n);
    pthread_mutex_lock(&lock);
    comm->n_gathers++;
#ifdef FAKE_HANGS
    bool comes = comm->rank < clique->size - 1;
#else
    bool comes = true;
#endif
    if (comes) {
        clique->parts[comm->rank] = parts;
        clique->n = n;
        clique->n_come++;
    }
    if (clique->n_come == clique->size) {
        exchange(clique);
        clique->n_come = 0;
        clique->n_gathers++;
    }
    bool done = clique->n_gathers >= comm->n_gathers;
    pthread_mutex_unlock(&lock);
    return done ? SUCCESS : NCCL_IN_PROGRESS;
}
