// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a service for the tests of net/rpc/, made of messages of the contract.
 *
 *   /test.Echo/Get    JobRequest -> Job            the same id; ids with a meaning: "fail" answers STALE with a text,
 *                                                  "silent" sends no reply, "other" one of another type, "wait" blocks until
 *                                                  it is cancelled, "long" makes the reply 1 MiB
 *   /test.Echo/Watch  WatchRequest -> Event...     from_sequence events; id "big" makes them 60 kB, "slow" 20 ms apart,
 *                                                  "last" sends the last with the status, "missing" answers NOT_FOUND
 *   /test.Echo/Chat   JobRequest... -> Job...      one for one
 *   /test.Echo/Relay  JobRequest -> Job            Get at the next server, as a child of this call
 *   /test.Echo/Follow WatchRequest -> Event...     Watch at the next server, as a child of this call
 */
#pragma once

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"
#include "proto/sluice/v1/inference.pb-c.h"
#include "net/rpc/standard/rpc_standard.h"

extern const struct sl_rpc_method echo_get, echo_watch, echo_chat, echo_relay, echo_follow;
extern const struct sl_rpc_service echo_service;

struct echo {
    struct sl_rpc_standard standard;   // beside it
    struct sl_rpc_channel *next;       // of Relay and Follow
    int64_t request_bytes, request_ms; // of the server's settings; 0: their defaults
    atomic_int n_waiting;              // handlers in "wait"
    atomic_int n_woken;                // of them, by on_cancel
    atomic_int n_cancelled;            // streams that ended because the client was gone
    atomic_int n_mute;                 // handlers of "mute", since the start
    atomic_llong deadline_ns;          // of the last "wait"
    pthread_mutex_t mutex;
    pthread_cond_t cond;
};

void echo_init(struct echo *echo);

// A server with this service, health and reflection; messages are limited to 1 MiB.
enum sl_status echo_start(struct echo *echo, const char *listen, int max_calls, struct sl_rpc_server **server_out,
                          struct sl_error *err);
void echo_stop(struct echo *echo, struct sl_rpc_server **server, int64_t grace_ms);

// Call a unary method and check that the reply has the id.
enum sl_status echo_call(struct sl_rpc_channel *channel, const struct sl_rpc_method *method, const char *id, int64_t ms,
                         struct sl_error *err);
enum sl_status echo_open(struct sl_rpc_channel *channel, const struct sl_rpc_method *method, const char *id,
                         int64_t n_events, int64_t ms, struct sl_rpc_stream **stream_out, struct sl_error *err);

// Does the value become `wanted` within ms? Does the leak gauge become 0?
bool echo_reaches(atomic_int *value, int wanted, int64_t ms);
bool echo_no_calls(int64_t ms);
