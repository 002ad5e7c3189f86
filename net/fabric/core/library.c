// SPDX-License-Identifier: Apache-2.0
#include "net/fabric/core/library.h"

#include <ucp/api/ucp.h>

const char *sl_fabric_library_version(void) {
    return ucp_get_version_string();
}
