// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: tells ThreadSanitizer about gRPC's synchronization. gRPC core is not instrumented, so the order that it
 *          establishes between passing in a tag and getting it back from a completion queue is invisible; these two
 *          macros declare it. Run with TSAN_OPTIONS=ignore_noninstrumented_modules=1.
 */
#pragma once

#if defined(__SANITIZE_THREAD__)
#define SL_RPC_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SL_RPC_TSAN 1
#endif
#endif

#ifdef SL_RPC_TSAN
#include <sanitizer/tsan_interface.h>
#define SL_RPC_HAND_OVER(tag) __tsan_release(tag) // before the operation is started
#define SL_RPC_TAKE_OVER(tag) __tsan_acquire(tag) // after the queue has returned the tag
#else
#define SL_RPC_HAND_OVER(tag) ((void)(tag))
#define SL_RPC_TAKE_OVER(tag) ((void)(tag))
#endif
