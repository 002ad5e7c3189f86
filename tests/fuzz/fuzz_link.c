// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for the frames of the fabric's links in the clear: a stranger connects and sends what it likes, in pieces,
 *          stalls, or goes. Every delivered frame is within its bounds, every receive ends once, a link that was not met is lost in time,
 *          and nothing leaks.
 *
 * Design: the input is steps, each of them a byte and its arguments: STEP_RAW and STEP_FRAME send bytes as they are, or after a
 *         prefix with the right magic. The input also says whether frames are received or dropped. One thread: the
 *         kernel has what was sent over loopback before send() returns.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/fabric/link/link_internal.h"

#define MAX_STEPS    64
#define MAX_RECEIVE  ((size_t)1 << 20) // more is dropped
#define PATIENCE_NS  (6 * SL_NS_PER_S) // longer than a link may take to be met
#define N_PROGRESSES 4

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum step { STEP_RAW, STEP_FRAME, STEP_MEET, STEP_ANSWER, STEP_STALL, STEP_END, STEP_RESET, STEP_FINISH, N_STEPS };

struct side { // the accepting side
    struct sl_links *links;
    struct sl_link *link;
    int n_lost, n_receiving;
    bool takes; // data on its way
    volatile uint8_t sum;
};

struct receive {
    struct side *side;
    size_t bytes;
    uint8_t *to;
};

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

// ---- the product's side ----------------------------------------------------------------------------------------------

static void *on_accepted(void *arg, struct sl_link *link, const char *from) {
    struct side *side = arg;
    (void)from;
    require(side->link == NULL);
    side->link = link;
    return side;
}

static void on_received(void *arg, enum sl_status status, size_t bytes) {
    struct receive *receive = arg;
    require(receive->side->n_receiving-- > 0 && bytes == (status == SL_OK ? receive->bytes : 0));
    free(receive->to);
    free(receive);
}

static void on_frame(void *owner, struct sl_link *link, const struct sl_link_frame *frame) {
    struct side *side = owner;
    require(frame->header_bytes <= SL_LINK_HEADER_MAX && frame->bytes <= SL_LINK_DATA_MAX);
    require(link->met || frame->bytes == 0); // strangers send no data
    for (size_t i = 0; i < frame->header_bytes; i++) {
        side->sum ^= ((const uint8_t *)frame->header)[i];
    }
    for (size_t i = 0; frame->data && i < frame->bytes; i++) {
        side->sum ^= ((const uint8_t *)frame->data)[i];
    }
    if (!frame->data && side->takes && frame->bytes <= MAX_RECEIVE) {
        struct receive *receive = malloc(sizeof *receive);
        require(receive != NULL);
        *receive = (struct receive){side, frame->bytes, malloc(frame->bytes)}; // no byte more
        side->n_receiving++;
        sl_link_receive(link, receive->to, on_received, receive);
    }
}

static void on_lost(void *owner, enum sl_status status, const char *text) {
    struct side *side = owner;
    require(status < 0 && text[0] != '\0' && side->n_lost++ == 0 && side->n_receiving == 0);
}

static void on_sent(struct sl_link_send *send, enum sl_status status) {
    (void)status;
    free(send); // once: a second time would be seen
}

static void turn(struct side *side) {
    for (int i = 0; i < N_PROGRESSES; i++) {
        sl_links_progress(side->links);
    }
}

// ---- the stranger's side -----------------------------------------------------------------------------------------------

static int connect_to(unsigned port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((uint16_t)port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct linger none = {.l_onoff = 1}; // else its port waits for a minute, and soon there is none left
    require(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none) == 0);
    require(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

static void say(int fd, const void *bytes, size_t n) {
    (void)!send(fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT); // it may be over, or the other side does not read
}

// A length in two bytes, then so many. Returns how much of the input that was.
static size_t say_raw(int fd, const uint8_t *data, size_t size) {
    size_t n = size < 2 ? 0 : (size_t)data[0] | (size_t)data[1] << 8;
    if (size < 2) {
        return size;
    }
    n = n < size - 2 ? n : size - 2;
    say(fd, data + 2, n);
    return 2 + n;
}

// A prefix of the right magic with lengths of the input's, and what is there of header and data.
static size_t say_frame(int fd, const uint8_t *data, size_t size) {
    if (size < 7) {
        return size;
    }
    uint32_t data_bytes;
    memcpy(&data_bytes, data + 3, sizeof data_bytes);
    struct sl_link_prefix prefix = {SL_LINK_MAGIC, data[0], (uint32_t)data[1] | (uint32_t)data[2] << 8, data_bytes};
    if (data[0] & 0x80) {
        prefix.data_bytes <<= 32;
    }
    say(fd, &prefix, sizeof prefix);
    size_t n = size - 7, wanted = prefix.header_bytes + (prefix.data_bytes < 4096 ? (size_t)prefix.data_bytes : 4096);
    n = n < wanted ? n : wanted;
    say(fd, data + 7, n);
    return 7 + n;
}

static void answer(struct side *side, uint8_t id) {
    struct sl_link_send *send = calloc(1, sizeof *send);
    require(send != NULL);
    *send = (struct sl_link_send){.id = id, .header = "an answer", .header_bytes = 9, .done = on_sent};
    sl_link_send(side->link, send);
}

static size_t take_step(struct side *side, int fd, const uint8_t *data, size_t size) {
    size_t n = 1;
    side->takes = data[0] & 0x80;
    switch ((enum step)((data[0] & 0x7f) % N_STEPS)) {
    case STEP_RAW:
        n += say_raw(fd, data + 1, size - 1);
        break;
    case STEP_FRAME:
        n += say_frame(fd, data + 1, size - 1);
        break;
    case STEP_MEET:
        if (!side->link->met) {
            sl_link_set_met(side->link);
        }
        break;
    case STEP_ANSWER:
        answer(side, data[0]);
        break;
    case STEP_STALL:
        sl_links_tick(side->links, sl_now_ns() + PATIENCE_NS);
        require(side->link->met || side->link->state >= LINK_ENDING); // its time is over
        break;
    case STEP_END:
        shutdown(fd, SHUT_WR);
        break;
    case STEP_RESET:
        shutdown(fd, SHUT_RDWR);
        break;
    case STEP_FINISH:
        sl_link_finish(side->link);
        side->n_lost = side->n_lost > 0 ? side->n_lost : 1; // it is not told of it any more
        break;
    case N_STEPS:
        break;
    }
    if (!(data[0] & 0x40)) { // else what comes next comes in the same turn
        turn(side);
    }
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct side side;
    static unsigned port;
    struct sl_error err;
    sl_log_configure("error", &err);
    if (!side.links) {
        static const struct sl_link_events events = {on_accepted, on_frame, on_lost};
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        require(sl_links_create(NULL, &events, &side, &side.links, &err) == SL_OK);
        require(sl_links_listen(side.links, (struct sockaddr *)&address, sizeof address, &port, &err) == SL_OK);
    }
    side = (struct side){.links = side.links};
    int fd = connect_to(port);
    for (int i = 0; i < 100 && !side.link; i++) {
        sl_links_progress(side.links);
    }
    require(side.link != NULL);
    for (int i = 0; i < MAX_STEPS && size > 0; i++) {
        size_t n = take_step(&side, fd, data, size);
        data += n;
        size -= n;
    }
    turn(&side);
    sl_link_close(&side.link);
    close(fd);
    require(side.n_receiving == 0 && side.links->first == NULL && side.links->n_unmet == 0);
    return 0;
}
