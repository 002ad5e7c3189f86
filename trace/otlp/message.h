// SPDX-License-Identifier: Apache-2.0
// Purpose: spans as OTLP's message.
#pragma once

#include <protobuf-c/protobuf-c.h>

#include "trace/trace.h"

// In memory of its own, until sl_otlp_free(). NULL: there is none. service and instance outlive it.
struct sl_otlp_request;
struct sl_otlp_request *sl_otlp_make(const struct sl_span *spans, size_t n, const char *service, const char *instance);
const ProtobufCMessage *sl_otlp_message(const struct sl_otlp_request *request);
void sl_otlp_free(struct sl_otlp_request *request); // accepts NULL
