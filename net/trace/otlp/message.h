// SPDX-License-Identifier: Apache-2.0
// Purpose: spans as an OTLP message.
#pragma once

#include <protobuf-c/protobuf-c.h>

#include "net/trace/trace.h"

// Owns its memory until sl_otlp_free(). NULL: no memory. service and instance must outlive it.
struct sl_otlp_request;
struct sl_otlp_request *sl_otlp_make(const struct sl_span *spans, size_t n, const char *service, const char *instance);
const ProtobufCMessage *sl_otlp_message(const struct sl_otlp_request *request);
void sl_otlp_free(struct sl_otlp_request *request); // accepts NULL
