/* SPDX-License-Identifier: MIT
 *
 * How long a client can hold an event loop, for benchmarks: what it costs to put a request into the queue and to take it out again, by how many wait and who they are; and what it costs to look at the
 * largest body of each of the worst shapes that is still looked at on the loop. Times of the thread's own clock: nothing else on the machine counts.
 *
 *   held queue    a line for each shape of queue: NAME, then ns at 16, 128 and 1,024 waiting
 *   held bodies   a line for each shape of body: NAME, then KiB of the largest and ms, the median of several
 *   held bodies KIB   of that size instead, wherever it is looked at
 */
#include <base/base.h>

#include <time.h>

#include <proxy/proxy_int.h>

static double cpu_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return v[n / 2];
}

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "held: %s\n", what);
    exit(1);
}

/* ---- queue ---------------------------------------------------------------------------------------------- */

enum { ROUNDS = 9, ENTRIES = 2000 };

/* Who ticket i is of, and of which conversation. */
struct shape {
    const char *name;
    uint64_t owners, flows; /* 0: no owner; no two of one conversation */
};
static const struct shape shapes[] = {
    {"as-many-conversations", 0, 0}, {"one-conversation", 0, 1}, {"one-key", 1, 0}, {"one-key-pairs", 1, 512}, {"one-key-two-conversations", 1, 2}, {"8-keys", 8, 64},
};

static void name(struct sched_ticket *t, const struct shape *s, size_t i)
{
    *t = (struct sched_ticket){.policy = "roundrobin", .leased = true, .owner = s->owners ? i % s->owners + 1 : 0, .flow = s->flows ? i % s->flows + 1 : i + 1};
}

/* With n waiting, whose conversations are as the shape says, others come and go. Tickets lie where requests have them. */
static double queue_ns(const struct shape *s, size_t n)
{
    static const struct sched_outcome gone = {.result = SCHED_ABANDONED};
    struct sched *q = sched_new(NULL);
    struct proxy_request *r = calloc(n + 1, sizeof *r);
    double ns[ROUNDS];
    if (!q || !r)
        die("out of memory");
    for (size_t i = 0; i + 1 < n; i++) {
        name(&r[i].ticket, s, i);
        if (sched_enter(q, &r[i].ticket, 1) < 0)
            die("the queue is full");
    }
    for (size_t round = 0; round < ROUNDS; round++) {
        double begun = cpu_ns();
        for (size_t i = 0; i < ENTRIES; i++) {
            struct sched_ticket *t = &r[n].ticket;
            name(t, s, n + i);
            if (sched_enter(q, t, 1) < 0)
                die("the queue is full");
            sched_leave(q, t, &gone, 1);
        }
        ns[round] = (cpu_ns() - begun) / ENTRIES;
    }
    free(r);
    sched_free(q);
    return median(ns, ROUNDS);
}

static void queue(void)
{
    for (size_t i = 0; i < BASE_COUNT(shapes); i++)
        (void)printf("%-26s %8.0f %8.0f %8.0f\n", shapes[i].name, queue_ns(&shapes[i], 16), queue_ns(&shapes[i], 128), queue_ns(&shapes[i], SCHED_QUEUE_MAX));
}

/* ---- bodies --------------------------------------------------------------------------------------------- */

struct body_shape {
    const char *name, *front, *repeated, *back;
};
static const struct body_shape bodies[] = {
    {"text", "\"messages\":[{\"role\":\"user\",\"content\":\"", "what a long text says, ", "\"}]"},
    {"code", "\"messages\":[{\"role\":\"user\",\"content\":\"", "    printf(\\\"%d\\\\n\\\", x);\\n", "\"}]"},
    {"backslashes", "\"messages\":[{\"role\":\"user\",\"content\":\"", "\\\\", "\"}]"},
    {"quotes", "\"messages\":[{\"role\":\"user\",\"content\":\"", "\\\"", "\"}]"},
    {"tokens", "\"prompt\":[", "31415,", "1]"},
    {"digits", "\"prompt\":[", "1,", "1]"},
    {"lists-of-digits", "\"prompt\":[", "[1,2,3],", "[]]"},
    {"empty-lists", "\"prompt\":[", "[],", "[]]"},
    {"strings", "\"input\":[", "\"a\",", "\"\"]"},
    {"messages", "\"messages\":[", "{\"role\":\"user\",\"content\":\"a\"},", "{}]"},
    {"empty-messages", "\"messages\":[", "{},", "{}]"},
    {"parts", "\"messages\":[{\"role\":\"user\",\"content\":[", "{\"type\":\"text\",\"text\":\"a\"},", "{}]}]"},
    {"odd-parts", "\"messages\":[{\"role\":\"user\",\"content\":[", "{\"a\":1,\"b\":2},", "{}]}]"},
    {"members", "\"messages\":[{", "\"a\":1,", "\"b\":2}]"},
    {"tool-calls", "\"messages\":[",
     "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"read\",\"arguments\":\"{\\\"path\\\":\\\"a/b\\\"}\"}}]},", "{}]"},
    {"tools", "\"tools\":[",
     "{\"type\":\"function\",\"function\":{\"name\":\"read\",\"parameters\":{\"type\":\"object\",\"properties\":{\"path\":{\"type\":\"string\"}},\"required\":[\"path\"]}}},", "{}]"},
    {"nest", "\"messages\":[", "[{\"a\":[{\"a\":[{\"a\":[{\"a\":[{\"a\":1}]}]}]}]}],", "{}]"},
    {"top-members", "", "\"a\":1,", "\"b\":2"},
    {"number", "\"prompt\":", "1", ""},
    {"white-space", "\"prompt\":", " ", "1"},
    {"spaces-behind", "\"prompt\":[1", " ", ",1]"},
    {"spaces", "\"messages\":[", "{ } , ", "{}]"},
};

static void make_body(const struct body_shape *s, size_t size, struct buf *out)
{
    *out = (struct buf)BUF_INIT(2 * size);
    buf_addf(out, "{\"model\":\"m\",\"stream\":true,%s", s->front);
    while (out->len + strlen(s->repeated) + strlen(s->back) + 1 <= size)
        buf_add_c(out, s->repeated);
    buf_addf(out, "%s}", s->back);
    if (buf_status(out) < 0)
        die("out of memory");
}

/* As look.c does. */
static void read_body(struct str body, struct place_identity *id)
{
    size_t off, len;
    base_ignore(json_scan_member(body, "model", &off, &len, NULL));
    place_read(PLACE_CHAT, body, 42, id);
    id->flow ^= place_hash(42, body) ^ place_hash(43, body);
}

/* The largest that is looked at on the loop. */
static size_t largest(const struct body_shape *s)
{
    size_t from = PROXY_LOOK_SURE, to = PROXY_LOOK_MAX;
    while (from + 64 < to) {
        size_t middle = from + (to - from) / 2;
        struct buf b;
        make_body(s, middle, &b);
        if (proxy_look_quick(buf_str(&b)))
            from = middle;
        else
            to = middle;
        buf_release(&b);
    }
    return from;
}

static void read_bodies(size_t size)
{
    static struct place_identity id;
    for (size_t i = 0; i < BASE_COUNT(bodies); i++) {
        struct buf b;
        double ns[ROUNDS];
        make_body(&bodies[i], size ? size : largest(&bodies[i]), &b);
        for (size_t round = 0; round < ROUNDS; round++) {
            double begun = cpu_ns();
            if (!size)
                base_ignore(proxy_look_quick(buf_str(&b)));
            read_body(buf_str(&b), &id);
            ns[round] = cpu_ns() - begun;
        }
        (void)printf("%-26s %8zu %8.3f\n", bodies[i].name, b.len / 1024, median(ns, ROUNDS) / 1e6);
        buf_release(&b);
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "queue") == 0)
        queue();
    else if ((argc == 2 || argc == 3) && strcmp(argv[1], "bodies") == 0)
        read_bodies(argc == 3 ? strtoul(argv[2], NULL, 10) * 1024 : 0);
    else
        return (void)fprintf(stderr, "usage: held queue | bodies [KIB]\n"), 2;
    return 0;
}
