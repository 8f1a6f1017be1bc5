/* SPDX-License-Identifier: MIT
 *
 * What the kernel log says, before memory or an engine is blamed. Read from /dev/kmsg, else through the journal; an account that may read neither is told so.
 */
#include "doctor_int.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RECORD_MAX 8192 /* the kernel's own limit of one record */

/* ---- reading ------------------------------------------------------------------------------------------------------ */

/* A recorded log is a file; the device gives one record for each read. */
static int read_kmsg(struct doctor *d)
{
    os_autoclose int fd = openat(hw_root(d->reader), "dev/kmsg", O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (S_ISREG(st.st_mode)) {
        base_autobuf struct buf b = BUF_INIT(DOCTOR_LOG_MAX);
        int r = os_read_all(fd, &b, NULL);
        if (r == 0)
            klog_add(d->log, buf_str(&b));
        return r;
    }
    if (!d->live || !S_ISCHR(st.st_mode))
        return -ENOENT;
    char record[RECORD_MAX];
    for (size_t all = 0; all < DOCTOR_LOG_MAX;) {
        ssize_t n = read(fd, record, sizeof record);
        if (n < 0 && (errno == EPIPE || errno == EINTR))
            continue; /* records were overwritten meanwhile */
        if (n <= 0)
            return n < 0 && errno != EAGAIN ? -errno : 0;
        klog_add(d->log, (struct str){record, (size_t)n});
        all += (size_t)n;
    }
    return 0;
}

static int read_journal(struct doctor *d)
{
    static const char *const argv[] = {"journalctl", "-k", "-b", "0", "-q", "--no-pager", "-o", "cat", "-n", "100000", NULL}; /* the newest: what is over the ceiling would be they */
    base_autobuf struct buf b = BUF_INIT(DOCTOR_LOG_MAX);
    int r = doctor_run(argv, &b, NULL);
    if (r == 0 && b.len == 0)
        return -EACCES; /* what an account without the right to it is shown */
    if (r == 0 && b.len == b.max)
        return -EFBIG;
    if (r == 0)
        klog_add(d->log, buf_str(&b));
    return r;
}

/* ---- what it means ---------------------------------------------------------------------------------------------------- */

struct meaning {
    enum doctor_level level;
    const char *what, *why, *todo;
};

static const struct meaning meanings[KLOG_KINDS] = {
    [KLOG_OOM] = {DOCTOR_BAD, "the kernel killed a process: the machine had no memory left", "an engine that vanishes without a word was ended so; its own settings for card memory are not at fault", "lower prompt-cache or what rests in RAM, or add swap; 'berth fit' shows the host's part"},
    [KLOG_OOM_GROUP] = {DOCTOR_WARN, "the kernel killed a process at its cgroup's limit", "the machine had memory; the unit's or container's own limit was met", "raise MemoryMax= of the unit, or the container's memory limit"},
    [KLOG_HANG] = {DOCTOR_BAD, "the GPU hung: a ring timed out", "the engine's work was thrown away, and what looks like a failed allocation after it is none", "update kernel and firmware; on an integrated GPU a lower ubatch makes single jobs shorter than the timeout"},
    [KLOG_RESET] = {DOCTOR_WARN, "the GPU was reset", "everything in its memory was lost: an engine that survived answers nonsense or errors", "restart the services on it; look at the line before the reset for the reason"},
    [KLOG_LOST] = {DOCTOR_BAD, "the GPU is lost", "nothing runs on it until the next boot", "reboot; if it comes back: power supply, seating, riser"},
    [KLOG_FAULT] = {DOCTOR_WARN, "a program on the GPU touched memory that is not its own", "a fault of the engine or its kernels, not too little memory", "pin the engine's version before, and report it there"},
    [KLOG_ATOMICS] = {DOCTOR_BAD, "ROCm's driver refuses a card: no PCIe atomics", "ROCm does not see it; Vulkan does", "move the card to a slot at the CPU, or use a runtime with Vulkan"},
    [KLOG_XID] = {DOCTOR_WARN, "", "", ""},
    [KLOG_MISMATCH] = {DOCTOR_BAD, "NVIDIA's library and kernel module are of different versions", "CUDA does not start: the driver was updated under a running module", "reboot, or unload and load the nvidia modules"},
    [KLOG_LINK] = {DOCTOR_WARN, "the PCIe link had errors, which were corrected", "each costs a repetition; many of them come before a lost card", "reseat card and riser, shorten the cable, or set the slot one generation lower"},
    [KLOG_LINK_FATAL] = {DOCTOR_BAD, "the PCIe link had errors that could not be corrected", "data was lost on the way; the driver may have lost the card", "reseat card and riser, set the slot one generation lower"},
    [KLOG_MACHINE] = {DOCTOR_BAD, "the CPU reported a hardware error", "memory or CPU is faulty: wrong tokens and crashes are to be expected", "look with rasdaemon or mcelog which part it is; test the memory"},
};

/* NVIDIA's numbers, by its own list. The others are told as they are. */
static const struct {
    unsigned xid;
    struct meaning m;
} xids[] = {
    {13, {DOCTOR_WARN, "a program on the card made an error", "a fault of the engine or its kernels, not of the card", "pin the engine's version before, and report it there"}},
    {31, {DOCTOR_WARN, "a program on the card touched memory that is not its own", "a fault of the engine or its kernels, not too little memory", "pin the engine's version before, and report it there"}},
    {43, {DOCTOR_WARN, "a program on the card was stopped after an error of its own", "a fault of the engine", "look at the engine's log at that time"}},
    {45, {DOCTOR_NOTE, "work was cleared away after its process ended", "follows the end of an engine", ""}},
    {48, {DOCTOR_BAD, "the card's memory had an error that could not be corrected", "what was computed is wrong", "reset the card; if it comes again, replace it"}},
    {62, {DOCTOR_BAD, "the card's controller stopped", "the card is of no use until it is reset", "reboot; update driver and VBIOS"}},
    {63, {DOCTOR_NOTE, "a row of the card's memory was replaced by a spare one", "takes effect at its next reset", "reset the card when it is idle"}},
    {64, {DOCTOR_BAD, "a row of the card's memory could not be replaced", "the card's memory is worn out", "replace the card"}},
    {74, {DOCTOR_BAD, "an NVLink had errors", "cards that work together over it fail", "reseat the bridge"}},
    {79, {DOCTOR_BAD, "the card fell off the bus", "nothing runs on it until the next boot; what the engine says of memory then is a consequence", "power supply and its cables, heat, seating, riser: in this order; then reboot"}},
    {92, {DOCTOR_WARN, "many errors of the card's memory were corrected", "it is wearing out", "watch the counters of nvidia-smi -q"}},
    {94, {DOCTOR_WARN, "an error of the card's memory was contained", "one process was ended for it", "restart the service; reset the card when it is idle"}},
    {95, {DOCTOR_BAD, "an error of the card's memory was not contained", "what was computed is wrong", "reset the card"}},
    {119, {DOCTOR_BAD, "the card's own processor did not answer", "the driver cannot use the card", "reboot; update the driver"}},
    {120, {DOCTOR_BAD, "the card's own processor made an error", "the driver cannot use the card", "reboot; update the driver"}},
};

static struct meaning meaning_of(struct doctor *d, const struct klog_event *e)
{
    struct meaning m = meanings[e->kind];
    if (e->kind != KLOG_XID)
        return m;
    for (size_t i = 0; i < BASE_COUNT(xids); i++)
        if (xids[i].xid == e->xid) {
            m = xids[i].m;
            m.what = doctor_text(d, "Xid %u: %s", e->xid, m.what);
            return m;
        }
    m.what = doctor_text(d, "Xid %u", e->xid);
    m.why = "the driver met an error of the card or of a program on it";
    m.todo = "look it up in NVIDIA's list of Xid errors";
    return m;
}

static void say(struct doctor *d, const struct klog_event *e)
{
    struct meaning m = meaning_of(d, e);
    char when[UNITS_TEXT];
    base_autobuf struct buf what = BUF_INIT(1024);
    buf_add_c(&what, m.what);
    if (e->kind == KLOG_OOM || e->kind == KLOG_OOM_GROUP || e->count > 1 || *e->process || e->last_us) {
        buf_addf(&what, " (%u time%s", e->count, e->count == 1 ? "" : "s");
        if (*e->process)
            buf_addf(&what, ", %s%s", e->count == 1 ? "" : "last ", e->process);
        if (e->last_us)
            buf_addf(&what, ", %s%s after boot", e->count == 1 ? "" : "last ", units_show_ms(e->last_us / 1000, when));
        buf_add_c(&what, ")");
    }
    doctor_say(d, m.level, "log", *e->pci ? e->pci : "kernel", m.why, m.todo, "%s", buf_status(&what) == 0 ? what.ptr : m.what);
}

void log_judge(struct doctor *d)
{
    int r = read_kmsg(d);
    if (r < 0 && d->live)
        r = read_journal(d);
    if (r < 0) {
        if (r == -E2BIG || r == -EFBIG)
            doctor_say(d, DOCTOR_NOTE, "log", "kernel", "GPU faults and processes that were killed for memory stand there and nowhere else", "read it by hand: journalctl -k", "the kernel log is too long to be read");
        else if (d->live)
            doctor_say(d, DOCTOR_NOTE, "log", "kernel", "GPU faults and processes that were killed for memory stand there and nowhere else",
                       "run it as root, or put the account into the group systemd-journal or adm", "the kernel log may not be read by this account");
        return;
    }
    for (size_t i = 0; i < d->log->n; i++)
        say(d, &d->log->events[i]);
    if (d->log->more)
        doctor_say(d, DOCTOR_NOTE, "log", "kernel", "", "read it whole: journalctl -k", "there are more kinds of errors than are listed");
    if (d->log->n == 0)
        doctor_say(d, DOCTOR_OK, "log", "kernel", "", "", "no GPU fault, no link error, nothing killed for memory since boot");
}
