// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: limits the memory of requests: of each by its length, and of all that are being handled together.
 *
 * Design: a message of two bytes can need sixty bytes of memory (an empty message in a repeated field). So memory is
 *         counted where unpacking allocates it: protobuf-c uses our allocator, which can refuse. rpc_streams.c limits what
 *         gRPC holds of messages that have not arrived completely.
 */
#include <stdlib.h>

#include "net/rpc/rpc_internal.h"

enum {
    BYTES_A_BYTE = 16,         // memory that each byte of a request may take
    BYTES_A_REQUEST = 1 << 20, // additional memory for each request
    BYTES_A_BLOCK = 16,        // malloc's own overhead
};

void sl_rpc_account_open(struct sl_rpc_account *account, struct sl_rpc_budget *budget) {
    *account = (struct sl_rpc_account){.budget = budget};
}

void sl_rpc_account_end_message(struct sl_rpc_account *account, bool is_kept) {
    const int64_t kept = is_kept ? account->taken : 0;
    atomic_fetch_add(&account->budget->left, account->taken - kept);
    account->held += kept;
    account->taken = 0;
}

void sl_rpc_account_begin(struct sl_rpc_account *account, size_t message_bytes) {
    sl_rpc_account_end_message(account, false);
    account->left = (int64_t)message_bytes * BYTES_A_BYTE + BYTES_A_REQUEST;
    account->over = SL_RPC_WITHIN;
}

bool sl_rpc_account_take(struct sl_rpc_account *account, size_t bytes) {
    const int64_t n = (int64_t)bytes;
    if (bytes > INT64_MAX / 2 || n > account->left) {
        account->over = SL_RPC_OVER_ITS_OWN;
        return false;
    }
    if (atomic_fetch_sub(&account->budget->left, n) < n) {
        atomic_fetch_add(&account->budget->left, n);
        account->over = SL_RPC_OVER_ALL;
        return false;
    }
    account->left -= n;
    account->taken += n;
    return true;
}

bool sl_rpc_account_hold(struct sl_rpc_account *account, int64_t bytes) {
    if (atomic_fetch_sub(&account->budget->left, bytes) < bytes) {
        atomic_fetch_add(&account->budget->left, bytes);
        account->over = SL_RPC_OVER_ALL;
        return false;
    }
    account->held += bytes;
    return true;
}

void sl_rpc_account_close(struct sl_rpc_account *account) {
    sl_rpc_account_end_message(account, false);
    atomic_fetch_add(&account->budget->left, account->held);
    account->held = 0;
}

enum sl_status sl_rpc_account_complain(const struct sl_rpc_account *account, const char *what, struct sl_error *err) {
    switch (account->over) {
    case SL_RPC_OVER_ITS_OWN:
        return sl_fail(err, SL_ERR_INVALID, "%s: takes more memory than a request of its length may", what);
    case SL_RPC_OVER_ALL:
        return sl_fail(err, SL_ERR_EXHAUSTED,
                       "%s: requests that are being handled take all the memory that is for them; retry in 1000 ms",
                       what);
    case SL_RPC_NO_MEMORY:
        return sl_fail(err, SL_ERR_EXHAUSTED, "%s: no memory for the request; retry in 1000 ms", what);
    case SL_RPC_WITHIN:
        break;
    }
    return SL_OK;
}

// ---- protobuf-c's allocator ------------------------------------------------------------------------------------------

static void *take_block(void *account, size_t bytes) {
    void *block = sl_rpc_account_take(account, bytes + BYTES_A_BLOCK) ? malloc(bytes) : NULL;
    struct sl_rpc_account *own = account;
    if (!block && own->over == SL_RPC_WITHIN) {
        own->over = SL_RPC_NO_MEMORY;
    }
    return block;
}

static void free_block(void *account, void *block) {
    (void)account; // the account frees all memory at once
    free(block);
}

ProtobufCAllocator sl_rpc_account_allocator(struct sl_rpc_account *account) {
    return (ProtobufCAllocator){take_block, free_block, account};
}
