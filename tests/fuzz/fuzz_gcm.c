// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for our provider of AES-GCM: messages in any pieces, of any length, some of them forged, beside OpenSSL's own:
 *          equal bytes, equal tags, equal refusals, nothing written beyond a piece. Nothing to do where a processor has no use for it.
 *
 * Design: the input is messages, each of them a byte of what it is, three of lengths and one of a forgery. Contexts are used again from
 *         message to message, as TLS does; the IV counts.
 */
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "net/fabric/link/crypto.h"

#define MAX_BYTES    ((size_t)1 << 14)
#define MAX_MESSAGES 24
#define TAG_BYTES    16

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

enum { DECRYPTS = 1, FORGED = 2, TAG_LAST = 4, IN_PLACE = 8 };

struct message {
    const uint8_t *additional, *text;
    size_t additional_bytes, bytes, piece;
    uint8_t iv[12], tag[TAG_BYTES];
    uint8_t how;
};

// Encrypts or decrypts the message. Returns whether it succeeded; the text to `out`, the tag to `tag` where it encrypts.
static bool crypt(EVP_CIPHER_CTX *context, const struct message *m, uint8_t *out, uint8_t tag[TAG_BYTES]) {
    int n = 0;
    bool encrypts = !(m->how & DECRYPTS), good = EVP_CipherInit_ex(context, NULL, NULL, NULL, m->iv, encrypts) == 1;
    if (!encrypts && !(m->how & TAG_LAST)) {
        good = good && EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, TAG_BYTES, (void *)m->tag) == 1;
    }
    if (m->additional_bytes > 0) {
        good = good && EVP_CipherUpdate(context, NULL, &n, m->additional, (int)m->additional_bytes) == 1;
    }
    for (size_t at = 0; good && at < m->bytes; at += m->piece) {
        size_t step = m->piece < m->bytes - at ? m->piece : m->bytes - at;
        // Allocated at its exact size: reads and writes outside of it are detected.
        uint8_t *from = malloc(step), *to = m->how & IN_PLACE ? from : malloc(step);
        require(from && to);
        memcpy(from, m->text + at, step);
        good = EVP_CipherUpdate(context, to, &n, from, (int)step) == 1 && n == (int)step;
        memcpy(out + at, to, step);
        free(from);
        if (to != from) {
            free(to);
        }
    }
    if (!encrypts && (m->how & TAG_LAST)) {
        good = good && EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, TAG_BYTES, (void *)m->tag) == 1;
    }
    good = good && EVP_CipherFinal_ex(context, out + m->bytes, &n) == 1 && n == 0;
    return good && (!encrypts || EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, TAG_BYTES, tag) == 1);
}

static EVP_CIPHER_CTX *context_of(struct sl_crypto *crypto, const char *name, const char *properties,
                                  const uint8_t *key) {
    EVP_CIPHER *cipher = EVP_CIPHER_fetch(crypto->library, name, properties);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    require(cipher && context && EVP_CipherInit_ex(context, cipher, NULL, key, NULL, 1) == 1);
    EVP_CIPHER_free(cipher);
    return context;
}

// Both say the same of it; what was encrypted is decrypted again, forged or not.
static void compare(EVP_CIPHER_CTX *ours, EVP_CIPHER_CTX *theirs, struct message *m, size_t forgery) {
    static uint8_t a[MAX_BYTES + TAG_BYTES], b[MAX_BYTES + TAG_BYTES], sealed[MAX_BYTES];
    uint8_t tag_a[TAG_BYTES] = {0}, tag_b[TAG_BYTES] = {0};
    uint8_t how = m->how;
    m->how &= (uint8_t)~DECRYPTS;
    require(crypt(ours, m, a, tag_a) && crypt(theirs, m, b, tag_b));
    require(memcmp(a, b, m->bytes) == 0 && memcmp(tag_a, tag_b, TAG_BYTES) == 0);
    if (!(how & DECRYPTS)) {
        return;
    }
    memcpy(sealed, a, m->bytes);
    memcpy(m->tag, tag_a, TAG_BYTES);
    const uint8_t *text = m->text;
    m->text = sealed;
    m->how = how;
    if (how & FORGED) {
        size_t at = forgery % (m->bytes + TAG_BYTES);
        *(at < m->bytes ? &sealed[at] : &m->tag[at - m->bytes]) ^= 1;
    }
    require(crypt(ours, m, a, tag_a) == !(how & FORGED) && crypt(theirs, m, b, tag_b) == !(how & FORGED));
    require((how & FORGED) || memcmp(a, text, m->bytes) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct sl_crypto crypto;
    static uint8_t text[MAX_BYTES];
    struct sl_error err;
    if (!crypto.library) {
        require(sl_crypto_open(&crypto, &err) == SL_OK);
        for (size_t i = 0; i < sizeof text; i++) {
            text[i] = (uint8_t)(i * 131 ^ i >> 7);
        }
    }
    if (size < 33 || !crypto.gcm) {
        return 0;
    }
    const char *name = data[0] & 1 ? "AES-256-GCM" : "AES-128-GCM";
    EVP_CIPHER_CTX *ours = context_of(&crypto, name, NULL, data + 1);
    EVP_CIPHER_CTX *theirs = context_of(&crypto, name, "provider=default", data + 1);
    data += 33, size -= 33;
    struct message m = {.iv = {1}};
    for (int i = 0; i < MAX_MESSAGES && size >= 8; i++, data += 8, size -= 8) {
        m.how = data[0];
        m.additional_bytes = data[1];
        m.additional = text + data[1];
        m.bytes = ((size_t)data[2] | (size_t)data[3] << 8) % (MAX_BYTES + 1);
        m.text = text;
        m.piece = ((size_t)data[4] | (size_t)data[5] << 8) + 1;
        if (m.bytes / m.piece > 64) { // else one message takes all the time
            m.piece = m.bytes / 64 + 1;
        }
        m.iv[11]++;
        compare(ours, theirs, &m, (size_t)data[6] | (size_t)data[7] << 8);
    }
    EVP_CIPHER_CTX_free(ours);
    EVP_CIPHER_CTX_free(theirs);
    return 0;
}
