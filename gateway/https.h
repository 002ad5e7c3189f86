// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the certificate of HTTPS and its key, from files that may be replaced while we serve: who connects from then on sees the new one,
 *          connections that are there stay.
 *
 * Design: libmicrohttpd lets us answer GnuTLS for each handshake, but hands over nothing of ours: the certificate comes to it by its
 *         connection's context. What a handshake is given it frees itself, so nobody needs to know how long one takes. A pair that is damaged
 *         or does not belong together leaves the one of before, as it is while one file has been replaced and the other not yet.
 * Threads: the HTTP daemon's.
 */
#pragma once

#include <gnutls/abstract.h>
#include <microhttpd.h>

#include "base/status.h"

struct sl_https_certificate;

// PEM; the paths are the caller's. SL_ERR_INVALID, SL_ERR_IO: the options that name them, and what is wrong.
enum sl_status sl_https_certificate_open(const char *certificate, const char *key,
                                         struct sl_https_certificate **certificate_out, struct sl_error *err);
void sl_https_certificate_close(struct sl_https_certificate **certificate); // accepts NULL, nulls

// MHD_OPTION_HTTPS_CERT_CALLBACK2, of connections whose sl_http_connections_context() is the certificate.
int sl_https_give_certificate(gnutls_session_t session, const struct gnutls_cert_retr_st *asked,
                              gnutls_pcert_st **list_out, unsigned *n_out, gnutls_ocsp_data_st **ocsp_out,
                              unsigned *n_ocsp_out, gnutls_privkey_t *key_out, unsigned *flags_out);
