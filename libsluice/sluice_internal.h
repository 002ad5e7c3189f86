// SPDX-License-Identifier: Apache-2.0
// Purpose: what the files of libsluice share.
#pragma once

#include "rpc/rpc.h"

struct sl_client {
    struct sl_rpc_credentials *credentials; // NULL: none
    struct sl_rpc_channel *channel;
};
