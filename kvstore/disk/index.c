// SPDX-License-Identifier: Apache-2.0
// The index of a folder of capsules. See index.h.
#include "kvstore/disk/index.h"

#include <errno.h>
#include <lmdb.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/hash.h"

#define FORMAT_VERSION 1
#define MAX_READERS    1024 // threads that look something up at the same time

// What a key and a capsule take at most in all tables, pages being at least half full; and the share of the file that they
// may have. The rest is for copies of the pages that a change touches: without any, nothing could even be removed.
#define KEY_BYTES     160
#define CAPSULE_BYTES 768
#define FULL_SHARE    2

enum table { ABOUT, CAPSULES, LISTS, PREFIXES, USES, N_TABLES };

static const struct {
    const char *name;
    unsigned flags;
} tables[N_TABLES] = {
    [ABOUT] = {"about", 0},       [CAPSULES] = {"capsules", MDB_INTEGERKEY}, [LISTS] = {"lists", MDB_INTEGERKEY},
    [PREFIXES] = {"prefixes", 0}, [USES] = {"uses", MDB_INTEGERKEY},
};

struct place { // what a key leads to
    uint64_t id;
    int64_t n_tokens; // that the key covers
    uint64_t whole;   // 1: all that the capsule has
};

struct sl_disk_index {
    MDB_env *env;
    MDB_dbi dbi[N_TABLES];
    size_t max_bytes;
    _Atomic uint64_t next;
};

static enum sl_status failed(int rc, const char *what, struct sl_error *err) {
    if (rc == MDB_NOTFOUND) {
        return sl_fail(err, SL_ERR_NOT_FOUND, "disk index: %s: not found", what);
    }
    return sl_fail(err, SL_ERR_IO, "disk index: %s: %s", what, mdb_strerror(rc));
}

static MDB_val value_of(const void *data, size_t bytes) {
    return (MDB_val){bytes, (void *)data};
}

// Values may lie unaligned in LMDB's pages: they are copied out. MDB_CORRUPTED: not of the size that it must have.
static int get(const struct sl_disk_index *index, MDB_txn *txn, enum table table, const void *key, size_t key_bytes,
               void *out, size_t out_bytes) {
    MDB_val k = value_of(key, key_bytes), v;
    int rc = mdb_get(txn, index->dbi[table], &k, &v);
    if (rc == 0 && v.mv_size != out_bytes) {
        rc = MDB_CORRUPTED;
    }
    if (rc == 0 && out_bytes > 0) {
        memcpy(out, v.mv_data, out_bytes);
    }
    return rc;
}

static int put(const struct sl_disk_index *index, MDB_txn *txn, enum table table, const void *key, size_t key_bytes,
               const void *value, size_t value_bytes) {
    MDB_val k = value_of(key, key_bytes), v = value_of(value, value_bytes);
    return mdb_put(txn, index->dbi[table], &k, &v, 0);
}

static int del(const struct sl_disk_index *index, MDB_txn *txn, enum table table, const void *key, size_t key_bytes) {
    MDB_val k = value_of(key, key_bytes);
    int rc = mdb_del(txn, index->dbi[table], &k, NULL);
    return rc == MDB_NOTFOUND ? 0 : rc;
}

// Key and value of one position of a table of numbers.
static int look(const struct sl_disk_index *index, MDB_txn *txn, enum table table, MDB_cursor_op op,
                uint64_t *key_inout, uint64_t *value_out) {
    MDB_cursor *cursor;
    MDB_val k = value_of(key_inout, sizeof *key_inout), v;
    int rc = mdb_cursor_open(txn, index->dbi[table], &cursor);
    if (rc != 0) {
        return rc;
    }
    rc = mdb_cursor_get(cursor, &k, &v, op);
    if (rc == 0 && (k.mv_size != sizeof *key_inout || (value_out && v.mv_size != sizeof *value_out))) {
        rc = MDB_CORRUPTED;
    }
    if (rc == 0) {
        memcpy(key_inout, k.mv_data, sizeof *key_inout);
        if (value_out) {
            memcpy(value_out, v.mv_data, sizeof *value_out);
        }
    }
    mdb_cursor_close(cursor);
    return rc;
}

static int begin_read(struct sl_disk_index *index, MDB_txn **txn_out) {
    return mdb_txn_begin(index->env, NULL, MDB_RDONLY, txn_out);
}

// The end of every change: where the sequence is goes with it.
static int finish(struct sl_disk_index *index, MDB_txn *txn, int rc) {
    if (rc == 0) {
        uint64_t next = atomic_load(&index->next);
        rc = put(index, txn, ABOUT, "next", 4, &next, sizeof next);
    }
    if (rc != 0) {
        mdb_txn_abort(txn);
        return rc;
    }
    return mdb_txn_commit(txn);
}

// ---- open and close ---------------------------------------------------------------------------------------------------

// A file that is shorter than its own account of pages would end the process when it is read.
static bool is_cut_short(MDB_env *env, const char *path) {
    MDB_envinfo info;
    MDB_stat stat_of_env;
    struct stat file;
    return mdb_env_info(env, &info) != 0 || mdb_env_stat(env, &stat_of_env) != 0 || stat(path, &file) != 0 ||
           (size_t)file.st_size < (info.me_last_pgno + 1) * (size_t)stat_of_env.ms_psize;
}

static int open_tables(struct sl_disk_index *index, uint64_t *version_out) {
    MDB_txn *txn;
    int rc = mdb_txn_begin(index->env, NULL, 0, &txn);
    if (rc != 0) {
        return rc;
    }
    for (int i = 0; i < N_TABLES && rc == 0; i++) {
        rc = mdb_dbi_open(txn, tables[i].name, tables[i].flags | MDB_CREATE, &index->dbi[i]);
    }
    uint64_t next = 1;
    *version_out = FORMAT_VERSION;
    if (rc == 0) {
        rc = get(index, txn, ABOUT, "version", 7, version_out, sizeof *version_out);
        rc = rc == MDB_NOTFOUND ? put(index, txn, ABOUT, "version", 7, version_out, sizeof *version_out) : rc;
    }
    if (rc == 0 && *version_out == FORMAT_VERSION) {
        rc = get(index, txn, ABOUT, "next", 4, &next, sizeof next);
        rc = rc == MDB_NOTFOUND ? 0 : rc;
    }
    atomic_init(&index->next, next);
    return finish(index, txn, rc);
}

static bool is_of_another_kind(int rc) {
    return rc == MDB_VERSION_MISMATCH || rc == MDB_INVALID || rc == MDB_CORRUPTED || rc == MDB_INCOMPATIBLE ||
           rc == MDB_PAGE_NOTFOUND || rc == MDB_PANIC || rc == MDB_BAD_VALSIZE;
}

enum sl_status sl_disk_index_open(const char *path, size_t max_bytes, struct sl_disk_index **index_out,
                                  struct sl_error *err) {
    struct sl_disk_index *index = calloc(1, sizeof *index);
    if (!index) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "disk index: out of memory");
    }
    index->max_bytes = max_bytes;
    uint64_t version = FORMAT_VERSION;
    int rc = mdb_env_create(&index->env);
    if (rc == 0) {
        rc = mdb_env_set_mapsize(index->env, max_bytes);
    }
    if (rc == 0) {
        rc = mdb_env_set_maxdbs(index->env, N_TABLES);
    }
    if (rc == 0) {
        rc = mdb_env_set_maxreaders(index->env, MAX_READERS);
    }
    if (rc == 0) {
        // Reading transactions belong to whoever has them, not to threads, which come and go here.
        rc = mdb_env_open(index->env, path, MDB_NOSUBDIR | MDB_NOTLS | MDB_NOMETASYNC, 0600);
    }
    if (rc == 0 && is_cut_short(index->env, path)) {
        rc = MDB_INVALID;
    }
    if (rc == 0) {
        rc = open_tables(index, &version);
    }
    enum sl_status status = SL_OK;
    if (rc == 0 && version != FORMAT_VERSION) {
        status =
            sl_fail(err, SL_ERR_PRECONDITION,
                    "%s is of version %llu, this is version %d: remove the folder's contents, or give another folder",
                    path, (unsigned long long)version, FORMAT_VERSION);
    } else if (is_of_another_kind(rc)) {
        status =
            sl_fail(err, SL_ERR_PRECONDITION,
                    "%s: %s: it is damaged or another program's; remove the folder's contents, or give another folder",
                    path, mdb_strerror(rc));
    } else if (rc != 0) {
        status = sl_fail(err, SL_ERR_IO, "%s: %s; give a folder on a local disk that this user can write to", path,
                         mdb_strerror(rc));
    }
    if (status != SL_OK) {
        sl_disk_index_close(&index);
        return status;
    }
    *index_out = index;
    return SL_OK;
}

void sl_disk_index_close(struct sl_disk_index **index_inout) {
    struct sl_disk_index *index = *index_inout;
    if (index) {
        if (index->env) {
            mdb_env_close(index->env);
        }
        free(index);
    }
    *index_inout = NULL;
}

uint64_t sl_disk_index_next(struct sl_disk_index *index) {
    return atomic_fetch_add(&index->next, 1);
}

// ---- changes --------------------------------------------------------------------------------------------------------

static uint64_t digest_of(struct sl_disk_entry entry) {
    entry.use = 0; // changes without the rest
    return sl_hash(&entry, offsetof(struct sl_disk_entry, digest), 0);
}

static bool is_there(struct sl_disk_index *index, MDB_txn *txn, uint64_t id) {
    struct sl_disk_entry entry;
    return get(index, txn, CAPSULES, &id, sizeof id, &entry, sizeof entry) == 0;
}

bool sl_disk_entry_is_damaged(const struct sl_disk_entry *entry) {
    return entry->digest != digest_of(*entry);
}

// As on the shelf: the younger capsule takes a prefix over, but not from one that is just that prefix.
static int put_prefix(struct sl_disk_index *index, MDB_txn *txn, const struct sl_capsule_id *key,
                      const struct place *place) {
    struct place there;
    int rc = get(index, txn, PREFIXES, key, sizeof *key, &there, sizeof there);
    if (rc == 0 && there.whole && !place->whole && is_there(index, txn, there.id)) {
        return 0;
    }
    return rc == 0 || rc == MDB_NOTFOUND ? put(index, txn, PREFIXES, key, sizeof *key, place, sizeof *place) : rc;
}

static int is_full(struct sl_disk_index *index, MDB_txn *txn, size_t n_more_keys, bool *full_out) {
    MDB_stat prefixes, capsules;
    int rc = mdb_stat(txn, index->dbi[PREFIXES], &prefixes);
    if (rc == 0) {
        rc = mdb_stat(txn, index->dbi[CAPSULES], &capsules);
    }
    if (rc == 0) {
        *full_out = capsules.ms_entries > 0 &&
                    (prefixes.ms_entries + n_more_keys) * KEY_BYTES + (capsules.ms_entries + 1) * CAPSULE_BYTES >
                        index->max_bytes / FULL_SHARE;
    }
    return rc;
}

enum sl_status sl_disk_index_put(struct sl_disk_index *index, uint64_t id, const struct sl_disk_entry *given,
                                 const uint64_t *hashes, struct sl_error *err) {
    MDB_txn *txn;
    int rc = mdb_txn_begin(index->env, NULL, 0, &txn);
    if (rc != 0) {
        return failed(rc, "begin", err);
    }
    bool full = false;
    rc = is_full(index, txn, given->n_hashes + 1, &full);
    if (rc != 0 || full) {
        mdb_txn_abort(txn);
        return rc != 0 ? failed(rc, "counting", err) : SL_AGAIN;
    }
    struct sl_disk_entry entry = *given;
    size_t list_bytes = sizeof *hashes * (size_t)entry.n_hashes;
    entry.use = sl_disk_index_next(index);
    entry.list_digest = sl_hash(hashes, list_bytes, 0);
    entry.digest = digest_of(entry);
    rc = put(index, txn, CAPSULES, &id, sizeof id, &entry, sizeof entry);
    if (rc == 0) {
        rc = put(index, txn, USES, &entry.use, sizeof entry.use, &id, sizeof id);
    }
    if (rc == 0 && list_bytes > 0) {
        rc = put(index, txn, LISTS, &id, sizeof id, hashes, list_bytes);
    }
    for (uint64_t i = 0; i < entry.n_hashes && rc == 0; i++) {
        struct sl_capsule_id key = {entry.key.model_fingerprint, entry.key.recipe_fingerprint, hashes[i]};
        rc = put_prefix(index, txn, &key, &(struct place){id, (int64_t)(i + 1) * entry.stride, 0});
    }
    if (rc == 0) {
        rc = put_prefix(index, txn, &entry.key, &(struct place){id, entry.n_tokens, 1});
    }
    rc = finish(index, txn, rc);
    return rc == 0 ? SL_OK : failed(rc, "adding a capsule", err);
}

// Another capsule may have taken the key over.
static int remove_prefix(struct sl_disk_index *index, MDB_txn *txn, const struct sl_capsule_id *key, uint64_t id) {
    struct place there;
    int rc = get(index, txn, PREFIXES, key, sizeof *key, &there, sizeof there);
    return rc == 0 && there.id == id ? del(index, txn, PREFIXES, key, sizeof *key) : rc == MDB_NOTFOUND ? 0 : rc;
}

static int remove_list(struct sl_disk_index *index, MDB_txn *txn, uint64_t id, const struct sl_disk_entry *entry) {
    MDB_val k = value_of(&id, sizeof id), v;
    int rc = mdb_get(txn, index->dbi[LISTS], &k, &v);
    if (rc != 0) {
        return rc == MDB_NOTFOUND ? 0 : rc;
    }
    uint64_t *hashes = malloc(v.mv_size);
    if (!hashes) {
        return ENOMEM;
    }
    memcpy(hashes, v.mv_data, v.mv_size); // what v points to moves with the first change
    for (size_t i = 0; i < v.mv_size / sizeof *hashes && rc == 0; i++) {
        struct sl_capsule_id key = {entry->key.model_fingerprint, entry->key.recipe_fingerprint, hashes[i]};
        rc = remove_prefix(index, txn, &key, id);
    }
    free(hashes);
    return rc == 0 ? del(index, txn, LISTS, &id, sizeof id) : rc;
}

// A damaged entry does not know its own use: then all are gone through.
static int remove_use(struct sl_disk_index *index, MDB_txn *txn, uint64_t use, uint64_t id) {
    uint64_t there;
    int rc = get(index, txn, USES, &use, sizeof use, &there, sizeof there);
    if (rc == MDB_NOTFOUND || (rc == 0 && there != id)) {
        use = 0;
        rc = look(index, txn, USES, MDB_FIRST, &use, &there);
        while (rc == 0 && there != id) {
            use++;
            rc = look(index, txn, USES, MDB_SET_RANGE, &use, &there);
        }
    }
    return rc == 0 ? del(index, txn, USES, &use, sizeof use) : rc == MDB_NOTFOUND ? 0 : rc;
}

enum sl_status sl_disk_index_remove(struct sl_disk_index *index, uint64_t id, struct sl_disk_entry *entry_out,
                                    struct sl_error *err) {
    MDB_txn *txn;
    struct sl_disk_entry entry;
    int rc = mdb_txn_begin(index->env, NULL, 0, &txn);
    if (rc != 0) {
        return failed(rc, "begin", err);
    }
    rc = get(index, txn, CAPSULES, &id, sizeof id, &entry, sizeof entry);
    if (rc == 0) {
        rc = remove_list(index, txn, id, &entry);
    }
    if (rc == 0) {
        rc = remove_prefix(index, txn, &entry.key, id);
    }
    if (rc == 0) {
        rc = remove_use(index, txn, entry.use, id);
    }
    if (rc == 0) {
        rc = del(index, txn, CAPSULES, &id, sizeof id);
    }
    rc = finish(index, txn, rc);
    if (rc == 0) {
        *entry_out = entry;
    }
    return rc == 0 ? SL_OK : failed(rc, "removing a capsule", err);
}

enum sl_status sl_disk_index_touch(struct sl_disk_index *index, uint64_t id, struct sl_error *err) {
    MDB_txn *txn;
    struct sl_disk_entry entry;
    int rc = mdb_txn_begin(index->env, NULL, 0, &txn);
    if (rc != 0) {
        return failed(rc, "begin", err);
    }
    rc = get(index, txn, CAPSULES, &id, sizeof id, &entry, sizeof entry);
    if (rc == 0) {
        rc = del(index, txn, USES, &entry.use, sizeof entry.use);
    }
    if (rc == 0) {
        entry.use = sl_disk_index_next(index);
        rc = put(index, txn, CAPSULES, &id, sizeof id, &entry, sizeof entry);
    }
    if (rc == 0) {
        rc = put(index, txn, USES, &entry.use, sizeof entry.use, &id, sizeof id);
    }
    rc = finish(index, txn, rc);
    return rc == 0 ? SL_OK : failed(rc, "counting a use", err);
}

// ---- questions --------------------------------------------------------------------------------------------------------

static enum sl_status read_entry(struct sl_disk_index *index, MDB_txn *txn, uint64_t id,
                                 struct sl_disk_entry *entry_out, struct sl_error *err) {
    struct sl_disk_entry entry;
    int rc = get(index, txn, CAPSULES, &id, sizeof id, &entry, sizeof entry);
    if (rc != 0) {
        return failed(rc, "reading an entry", err);
    }
    if (sl_disk_entry_is_damaged(&entry)) {
        return sl_fail(err, SL_ERR_INVALID, "disk index: the entry of capsule %llu is damaged", (unsigned long long)id);
    }
    *entry_out = entry;
    return SL_OK;
}

enum sl_status sl_disk_index_get(struct sl_disk_index *index, uint64_t id, struct sl_disk_entry *entry_out,
                                 struct sl_error *err) {
    MDB_txn *txn;
    int rc = begin_read(index, &txn);
    if (rc != 0) {
        return failed(rc, "begin", err);
    }
    enum sl_status status = read_entry(index, txn, id, entry_out, err);
    mdb_txn_abort(txn);
    return status;
}

enum sl_status sl_disk_index_list(struct sl_disk_index *index, uint64_t id, const struct sl_disk_entry *entry,
                                  uint64_t *hashes_out, struct sl_error *err) {
    MDB_txn *txn;
    int rc = begin_read(index, &txn);
    if (rc != 0) {
        return failed(rc, "begin", err);
    }
    size_t bytes = sizeof *hashes_out * (size_t)entry->n_hashes;
    rc = bytes > 0 ? get(index, txn, LISTS, &id, sizeof id, hashes_out, bytes) : 0;
    mdb_txn_abort(txn);
    if (rc == MDB_CORRUPTED || (rc == 0 && sl_hash(hashes_out, bytes, 0) != entry->list_digest)) {
        return sl_fail(err, SL_ERR_INVALID, "disk index: the prefixes of capsule %llu are damaged",
                       (unsigned long long)id);
    }
    return rc == 0 ? SL_OK : failed(rc, "reading a list", err);
}

enum sl_status sl_disk_index_find(struct sl_disk_index *index, const struct sl_prefix *prefixes, size_t n_prefixes,
                                  size_t *at_out, uint64_t *id_out, struct sl_disk_entry *entry_out,
                                  struct sl_error *err) {
    MDB_txn *txn;
    int rc = begin_read(index, &txn);
    if (rc != 0) {
        return failed(rc, "begin", err);
    }
    enum sl_status status = SL_ERR_NOT_FOUND;
    for (size_t i = 0; i < n_prefixes && status == SL_ERR_NOT_FOUND; i++) {
        struct place place;
        rc = get(index, txn, PREFIXES, &prefixes[i].id, sizeof prefixes[i].id, &place, sizeof place);
        if (rc != 0 && rc != MDB_NOTFOUND) {
            status = failed(rc, "looking up a prefix", err);
        } else if (rc == 0 && place.n_tokens == prefixes[i].n_tokens) {
            *id_out = place.id;
            status = read_entry(index, txn, place.id, entry_out, err);
            if (status == SL_OK && entry_out->n_tokens / 4 > place.n_tokens) {
                status = SL_ERR_NOT_FOUND;
            }
            *at_out = i;
        }
    }
    mdb_txn_abort(txn);
    return status;
}

bool sl_disk_index_has(struct sl_disk_index *index, const struct sl_capsule_id *key, uint64_t *id_out) {
    MDB_txn *txn;
    struct place place;
    if (begin_read(index, &txn) != 0) {
        return false;
    }
    bool has = get(index, txn, PREFIXES, key, sizeof *key, &place, sizeof place) == 0 && place.whole &&
               is_there(index, txn, place.id);
    mdb_txn_abort(txn);
    if (has) {
        *id_out = place.id;
    }
    return has;
}

enum sl_status sl_disk_index_oldest(struct sl_disk_index *index, uint64_t *id_out, struct sl_error *err) {
    MDB_txn *txn;
    uint64_t use = 0;
    int rc = begin_read(index, &txn);
    if (rc != 0) {
        return failed(rc, "begin", err);
    }
    rc = look(index, txn, USES, MDB_FIRST, &use, id_out);
    mdb_txn_abort(txn);
    return rc == 0 ? SL_OK : failed(rc, "looking for the oldest capsule", err);
}

enum sl_status sl_disk_index_walk(struct sl_disk_index *index, uint64_t from, uint64_t *id_out, struct sl_error *err) {
    MDB_txn *txn;
    int rc = begin_read(index, &txn);
    if (rc != 0) {
        return failed(rc, "begin", err);
    }
    rc = look(index, txn, CAPSULES, MDB_SET_RANGE, &from, NULL);
    mdb_txn_abort(txn);
    if (rc == 0) {
        *id_out = from;
    }
    return rc == 0 ? SL_OK : failed(rc, "going through the capsules", err);
}
