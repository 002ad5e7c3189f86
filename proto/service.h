// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a service and its methods as the contract declares them. The build generates a constant for each from the .proto
 *          files (proto/methods.py): proto/methods.h has sl_service_<service> and sl_method_<service>_<method>.
 */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>

enum sl_rpc_kind { SL_RPC_UNARY, SL_RPC_SERVER_STREAM, SL_RPC_BIDI };

struct sl_rpc_method {
    const char *path; // "/package.Service/Method"
    enum sl_rpc_kind kind;
    const ProtobufCMessageDescriptor *request, *reply;
};

struct sl_rpc_service {
    const char *name;                           // "package.Service"
    const struct sl_rpc_method *const *methods; // [n_methods]
    size_t n_methods;
};
