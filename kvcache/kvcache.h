// SPDX-License-Identifier: Apache-2.0
// Purpose: the data structure that everybody talks about, in reading order.
#ifndef SL_KVCACHE_KVCACHE_H
#define SL_KVCACHE_KVCACHE_H

#include "kvcache/capsule.h" // a session as bytes
#include "kvcache/page.h"    // the bytes of 64 slots
#include "kvcache/scan.h"    // their keys once more, channel by channel
#include "kvcache/session.h" // page tables over an arena

#endif
