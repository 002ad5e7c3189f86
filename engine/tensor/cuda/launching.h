// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what happens around every launch on a real device: the driver (plugin/cudart_driver.c) makes the device the thread's own, remembers the name, and
 *          keeps the first failure for whoever waits.
 */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

void sl_cuda_launching(const char *what); // a string that stays
void sl_cuda_launched(void);

#ifdef __cplusplus
}
#endif
