// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: AES-GCM by ipsec-mb as a provider of OpenSSL: its TLS calls it as it would call its own AES.
 *
 * Design: OpenSSL 3.0 computes AES one block of 16 bytes per instruction; ipsec-mb computes four (VAES), and is two and
 *         a half times as fast. A provider is OpenSSL's interface for external ciphers: handshake, records, sequence
 *         numbers, alerts, and the handling of a wrong tag stay OpenSSL's, the bytes on the wire are the same, and this
 *         file makes no protocol decision.
 *
 * Not here: features that TLS does not use: IVs of other lengths than 12 bytes, shorter tags, copies of a context.
 */
#pragma once

#include <openssl/core.h>

#define SL_GCM_PROVIDER "sluice-gcm" // its name, and that of its property `provider`

// For OSSL_PROVIDER_add_builtin(). Fails if the processor has no VAES of 512 bits: OpenSSL's own is as fast there.
OSSL_provider_init_fn sl_gcm_provider;
