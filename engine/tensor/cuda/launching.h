// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: called around every launch on a real device. The driver (plugin/cudart_driver.c) makes the device the
 *          thread's own, remembers the kernel's name, and keeps the first failure for the next wait.
 */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

void sl_cuda_launching(const char *what); // what: a string that is never freed
void sl_cuda_launched(void);

#ifdef __cplusplus
}
#endif
