// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: AES-GCM by ipsec-mb as a provider of OpenSSL: its own TLS calls it as it would call its own AES.
 *
 * Design: OpenSSL 3.0 does AES one block of 16 bytes an instruction; ipsec-mb does four (VAES), and is two and a half times as
 *         fast. A provider is OpenSSL's way to take a cipher from elsewhere: handshake, records, numbers, alerts, and what
 *         becomes of a record whose tag is wrong stay OpenSSL's, the bytes on the wire are the same, and here is no decision
 *         about a protocol.
 *
 * Not here: what only a caller other than TLS would ask for: IVs of other lengths than 12 bytes, shorter tags, copies of a context.
 */
#pragma once

#include <openssl/core.h>

#define SL_GCM_PROVIDER "sluice-gcm" // its name, and that of its property `provider`

// For OSSL_PROVIDER_add_builtin(). Fails where the processor has no VAES of 512 bits: OpenSSL's own is as fast there.
OSSL_provider_init_fn sl_gcm_provider;
