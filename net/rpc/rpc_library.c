// SPDX-License-Identifier: Apache-2.0
#include "net/rpc/rpc_library.h"

#include <grpc/grpc.h>

const char *sl_rpc_library_version(void) {
    return grpc_version_string();
}
