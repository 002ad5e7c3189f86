// SPDX-License-Identifier: Apache-2.0
// Purpose: what the files of libsluice share.
#ifndef SL_LIBSLUICE_SLUICE_INTERNAL_H
#define SL_LIBSLUICE_SLUICE_INTERNAL_H

#include "rpc/rpc.h"

struct sl_client {
    struct sl_rpc_channel *channel;
};

#endif
