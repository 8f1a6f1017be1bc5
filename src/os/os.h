/* SPDX-License-Identifier: MIT
 *
 * os: the machine underneath. Files, digests, child processes, /proc, the terminal. It knows nothing of fleets,
 * models or HTTP. Paths from outside become names below a directory descriptor or are refused. Descriptors are close-on-exec.
 *
 * Children are made by fork and exec from the main thread only: the parent-death signal follows the thread that forked.
 */
#pragma once

#include <base/base.h>
#include <sys/types.h>

/* ---- where things live ------------------------------------------------------------------------------ */

/* All absolute, without a trailing slash; owned by the struct, released by os_dirs_release. */
struct os_dirs {
    char *state;  /* root: /var/lib/berth; else $XDG_STATE_HOME/berth or ~/.local/state/berth; $BERTH_STATE wins */
    char *run;    /* root: /run/berth; else $XDG_RUNTIME_DIR/berth, or state/run; $BERTH_RUN wins */
    char *config; /* root: /etc/berth; else $XDG_CONFIG_HOME/berth or ~/.config/berth; $BERTH_CONFIG wins. Units of `scope: user` are beside it */
};
/* Reads the environment; makes nothing. A relative path in a variable is -EINVAL. */
int os_dirs_find(struct os_dirs *ret, struct err *err) BASE_MUST_USE;
void os_dirs_release(struct os_dirs *d);

/* ---- files --------------------------------------------------------------------------------------------- */

#define os_autoclose __attribute__((cleanup(os_closep)))
void os_closep(int *fd); /* closes when >= 0 and sets -1; keeps errno */
/* Value of a descriptor variable, which becomes -1: hands it out of a scope-closed one. */
int os_take_fd(int *fd) BASE_MUST_USE;

/* The whole of a regular file into out (appended), at most out's ceiling. Errors name the path; a file over the ceiling is -EFBIG.
 * dirfd may be AT_FDCWD. */
int os_read_file(int dirfd, const char *path, struct buf *out, struct err *err) BASE_MUST_USE;
/* Everything from fd until its end. */
int os_read_all(int fd, struct buf *out, struct err *err) BASE_MUST_USE;
int os_write_all(int fd, const void *data, size_t len, struct err *err) BASE_MUST_USE;
/* Replaces dirfd/name at once: temporary file beside it, write, fsync, rename, fsync of the directory. Leaves no
 * temporary file behind on failure. name has no slash. */
int os_write_atomic(int dirfd, const char *name, const void *data, size_t len, mode_t mode, struct err *err) BASE_MUST_USE;
/* The same for a file that is there and may be written to: it keeps its rights and, as far as we may give it, its owner. */
int os_replace_atomic(int dirfd, const char *name, const void *data, size_t len, struct err *err) BASE_MUST_USE;
/* By path, for files of people: one that is there keeps its rights and its owner as above, whoever that is, unless it is ours and not to be written to (-EACCES); a link stays, and what it leads to is replaced; else a
 * new file with that mode. -EINVAL: no regular file. */
int os_put_file(const char *path, const void *data, size_t len, mode_t mode, struct err *err) BASE_MUST_USE;
/* Removes the temporary files that os_write_atomic of a killed process left in a directory where nobody else writes. */
void os_write_sweep(int dirfd);
/* Makes path and its missing parents (parents with mode | 0111 for search, at most 0755). Existing is fine when a directory. */
int os_make_dirs(const char *path, mode_t mode, struct err *err) BASE_MUST_USE;
/* Opens a directory (O_PATH-free, readable). Returns the descriptor or a negative errno. */
int os_open_dir(const char *path, struct err *err) BASE_MUST_USE;
/* Removes dirfd/name and everything below it; never follows links, never crosses out of it. Absent is fine. */
int os_remove_tree(int dirfd, const char *name, struct err *err) BASE_MUST_USE;
/* The same by an absolute path, such as mkdtemp gives. */
int os_remove_path(const char *path, struct err *err) BASE_MUST_USE;
/* Copies a regular file, by reflink where the file system can, else by copy_file_range or read/write. dst must not exist. Mode is given. */
int os_copy_file(int src_dirfd, const char *src, int dst_dirfd, const char *dst, mode_t mode, struct err *err) BASE_MUST_USE;

/* One entry met by os_walk. */
struct os_entry {
    const char *path; /* relative to the root of the walk, without "./" */
    int dirfd;        /* of the containing directory */
    const char *name; /* last component */
    mode_t mode;      /* as lstat says */
    uint64_t size;
};
/* Visits everything below dirfd, parents before children, names in byte order, links not followed, at most OS_WALK_DEPTH deep
 * (-ELOOP beyond). visit returns 0 to go on or a negative errno that ends the walk and is returned. */
#define OS_WALK_DEPTH 64
int os_walk(int dirfd, int (*visit)(void *ctx, const struct os_entry *e, struct err *err), void *ctx, struct err *err) BASE_MUST_USE;

/* True when name is one plain path component: not empty, no '/', no NUL, not "." or "..", no control byte, <= 255 bytes. */
bool os_name_valid(struct str name);
/* True when path is relative and each component is os_name_valid. */
bool os_relpath_valid(struct str path);

/* flock on path (made with 0600 when absent). Returns the descriptor (closing it unlocks) or -EWOULDBLOCK when wait is false
 * and somebody else holds it. The file is never removed. */
int os_lock(const char *path, bool exclusive, bool wait, struct err *err) BASE_MUST_USE;

/* ---- digest ------------------------------------------------------------------------------------------------ */

#define OS_SHA256_HEX 65 /* with terminator */
struct os_digest;        /* running sha256 */
struct os_digest *os_digest_new(void) BASE_MUST_USE;
struct os_digest *os_digest_free(struct os_digest *d);
int os_digest_add(struct os_digest *d, const void *data, size_t len) BASE_MUST_USE;
/* Ends the digest; d can only be freed after it. */
int os_digest_hex(struct os_digest *d, char ret[OS_SHA256_HEX]) BASE_MUST_USE;
/* A running sha1 of a git blob of so many bytes: what a hub names small files by. os_digest_hex then writes 40 digits. */
struct os_digest *os_digest_new_git(uint64_t bytes) BASE_MUST_USE;
#define OS_SHA1_HEX 41
/* Of a whole file, from its start; *ret_bytes (may be NULL) is what was read. */
int os_digest_file(int dirfd, const char *path, char ret[OS_SHA256_HEX], uint64_t *ret_bytes, struct err *err) BASE_MUST_USE;

/* A sha256 that can be interrupted: its state after a multiple of OS_SHA256_BLOCK bytes is kept, and taken up again later or by another thread. Nothing of it fails. */
#define OS_SHA256_BYTES 32
#define OS_SHA256_BLOCK 64
struct os_sha256 {
    uint32_t state[8];
    uint64_t bytes;                /* hashed so far */
    uint8_t rest[OS_SHA256_BLOCK]; /* bytes % OS_SHA256_BLOCK of them wait for their block */
};
void os_sha256_init(struct os_sha256 *h);
/* As it was when os_sha256_state gave this state, after so many bytes. */
void os_sha256_resume(struct os_sha256 *h, const uint8_t state[OS_SHA256_BYTES], uint64_t bytes);
void os_sha256_update(struct os_sha256 *h, const void *data, size_t n);
/* Only when the bytes so far are a multiple of OS_SHA256_BLOCK. */
void os_sha256_state(const struct os_sha256 *h, uint8_t ret[OS_SHA256_BYTES]);
/* h is used up by it. */
void os_sha256_final(struct os_sha256 *h, uint8_t ret[OS_SHA256_BYTES]);
/* Lower-case hexadecimal digits of n bytes into out (2 n + 1 bytes). Returns out. */
const char *os_hex(const uint8_t *data, size_t n, char *out);
/* The other way: false, with ret untouched, unless hex is exactly 2 n lower-case digits. */
bool os_unhex(struct str hex, uint8_t *ret, size_t n) BASE_MUST_USE;

/* ---- processes ------------------------------------------------------------------------------------------------ */

/* First of all in a program: descriptors 0 to 2 are taken, so that no file of ours is met by what is meant for them, and the limit of descriptors is raised as far as it
 * may be. Children of os_spawn get the limit back that we came with: there are programs that use select. */
void os_begin(void);
size_t os_fds_max(void); /* how many descriptors this process may have */

/* A bind mount that the child makes in a mount namespace of its own before it gives up its rights (root only). */
struct os_bind {
    const char *from, *to; /* both must exist; same kind (file or directory) */
};

struct os_spawn {
    const char *const *argv;    /* NULL-terminated; argv[0] is the program's path, or a name looked up in PATH when use_path */
    const char *const *envp;    /* NULL-terminated; the whole environment of the child; NULL is the empty one */
    bool use_path;
    const char *cwd;            /* NULL keeps ours */
    int stdin_fd, stdout_fd, stderr_fd; /* -1 is /dev/null */
    const int *keep_fds;        /* descriptors that reach the child, as 3, 4, ... in this order */
    size_t n_keep_fds;
    int death_signal;           /* sent to the child when we die; 0 none. Set after setuid, then it is looked whether we live */
    bool new_group;             /* a process group of its own, so that the terminal's Ctrl-C is ours alone */
    bool end_group;             /* os_run: what is left of that group when the command has ended is killed */
    bool own_pids;              /* in a namespace of processes of its own, with its own /proc: all that it ever started ends with it. Without root this takes a user namespace too */
    bool own_init;              /* with own_pids: the program runs as the child of a small first process there, so that signals and orphans are as anywhere; signals to it reach the program, and its end is the program's */
    const struct os_bind *binds; /* made read-only, in a private mount namespace */
    size_t n_binds;
    const char *chroot;         /* entered after the binds; NULL none */
    bool drop;                  /* give up root: the account's own supplementary groups, gid and uid below, no_new_privs */
    uid_t uid;
    gid_t gid;
};
struct os_proc {
    pid_t pid;
    int pidfd; /* readable when the process has ended; -1 when none */
    int *told; /* with own_init: where its end is told; os's own, NULL without */
};
#define OS_PROC_NONE ((struct os_proc){.pid = 0, .pidfd = -1})

/* The path of a program, into out (cleared first), from the first folder of our PATH that holds it; relative folders are passed over. -ENOENT. */
int os_find_program(const char *name, struct buf *out, struct err *err) BASE_MUST_USE;

/* Starts a child. A failure in the child before or at exec (no such file, mount refused, ...) is returned here, with the step named,
 * and leaves no child. All signals are default and unblocked in the child. */
int os_spawn(const struct os_spawn *s, struct os_proc *ret, struct err *err) BASE_MUST_USE;
/* Whether own_pids works here. Found out once, by doing it. */
bool os_own_pids_possible(void);
int os_proc_signal(const struct os_proc *p, int sig) BASE_MUST_USE; /* -ESRCH when ended */
/* Kills the group of a process that was started with new_group and is not collected yet: what it has started and left behind. */
void os_proc_kill_group(const struct os_proc *p);
/* Collects an ended child without waiting: 1 and *ret_status (as waitpid's) when it has ended, 0 while it runs. */
int os_proc_reap(struct os_proc *p, int *ret_status) BASE_MUST_USE;
void os_proc_release(struct os_proc *p); /* closes the descriptor, frees what is os's own */
/* "exit 1", "killed by SIGSEGV (core dumped)". Returns out. */
#define OS_STATUS_TEXT 64
const char *os_status_text(int status, char out[OS_STATUS_TEXT]);

/* For work that leaves something half-made: between the two, SIGINT, SIGTERM, SIGHUP and SIGQUIT are kept, os_run and os_walk end with -EINTR, and what was made can be cleared away; at the
 * end the signal is sent again and does what it would have done. May be nested; one thread. */
void os_interrupt_begin(void);
void os_interrupt_end(void);
bool os_interrupted(void);
int os_interrupt_fd(void); /* readable when a signal came; -1 outside */

/* Runs a command to its end with both outputs collected up to their ceilings (what is over is read and dropped). stdin is /dev/null.
 * Killed after timeout_ms (0 none), with its whole group when new_group: -ETIMEDOUT; or when it is interrupted: -EINTR. Returns 0 with *ret_status otherwise.
 * s's stdin_fd, stdout_fd and stderr_fd are ignored. out and errout may be NULL: /dev/null. With new_group, a signal that ends us (SIGTERM has no handler) ends the group first. */
int os_run(const struct os_spawn *s, uint64_t timeout_ms, struct buf *out, struct buf *errout, int *ret_status, struct err *err) BASE_MUST_USE;
/* The same with input as its standard input: a file, or a memfd; the caller's. */
int os_run_with(const struct os_spawn *s, int input, uint64_t timeout_ms, struct buf *out, struct buf *errout, int *ret_status, struct err *err) BASE_MUST_USE;
/* For commands that are to end with 0, as os_run; what the command says on stderr goes into err. -EIO: it ended otherwise, and err has os_status_ok's text, for err_prefix. */
int os_run_ok(const struct os_spawn *s, uint64_t timeout_ms, struct buf *out, struct err *err) BASE_MUST_USE;
/* 0 for a status of 0; else -EIO with how it ended and the last of what it said: "exit 1: cannot open 'x'". Its last whole lines that fit in OS_LAST_WORDS, joined by "; ", made printable. */
#define OS_LAST_WORDS 400
int os_status_ok(int status, struct str said, struct err *err) BASE_MUST_USE;

/* The pidfd of a process that is not our child; -ESRCH. */
int os_pidfd_open(pid_t pid) BASE_MUST_USE;

/* ---- the service manager ----------------------------------------------------------------------------------------- */

/* Sockets that a manager opened for us (systemd's socket activation), with the names that it gave them. */
#define OS_SOCKETS_MAX 16
struct os_socket {
    int fd;        /* listening, close-on-exec, non-blocking; the caller's */
    char name[64]; /* "" */
};
/* 0 with *ret_n 0 when there are none for this process. The variables that told are gone afterwards. -EBADF: a descriptor that is no listening socket; -E2BIG. */
int os_sockets_passed(struct os_socket list[OS_SOCKETS_MAX], size_t *ret_n, struct err *err) BASE_MUST_USE;
/* Tells the manager: "READY=1\nSTATUS=3 services are ready". 0 also when nobody listens for it; errors are for who wants to know. */
int os_notify(const char *fmt, ...) BASE_PRINTF(1, 2);
int os_notify_reloading(void); /* READY=1 must follow */
/* How often WATCHDOG=1 is to be said; 0: nobody waits for it. */
uint64_t os_watchdog_ms(void);

/* ---- /proc ------------------------------------------------------------------------------------------------------- */

#define OS_BOOT_ID 40
int os_boot_id(char ret[OS_BOOT_ID], struct err *err) BASE_MUST_USE;
/* Start time of a process in clock ticks since boot: with the boot id it names a process for ever. -ESRCH. */
int os_proc_start(pid_t pid, uint64_t *ret_ticks) BASE_MUST_USE;
/* A child of another process, as this one's /proc numbers it; 0 when it has none. */
pid_t os_proc_child(pid_t parent);
struct os_mem {
    uint64_t rss_bytes, rss_anon_bytes, swap_bytes;
};
int os_proc_mem(pid_t pid, struct os_mem *ret) BASE_MUST_USE;
/* The process that listens on a TCP port of this machine: pid 0 with -ENOENT when none; name may be "?" where /proc does not show it. */
struct os_owner {
    pid_t pid; /* 0: somebody listens but may not be seen */
    char name[64];
};
int os_port_owner(uint16_t port, struct os_owner *ret) BASE_MUST_USE;
/* How many TCP sockets have that local port: listening or connected, and those that only wait for late packets (TIME_WAIT). */
int os_port_sockets(uint16_t port, unsigned *ret_open, unsigned *ret_waiting) BASE_MUST_USE;
/* uid and gid of the account that engines run as when we are root: "_berth", else "nobody". */
int os_engine_account(uid_t *ret_uid, gid_t *ret_gid, struct err *err) BASE_MUST_USE;

/* ---- terminal --------------------------------------------------------------------------------------------------------- */

bool os_is_terminal(int fd);
/* Columns of the terminal at fd; 80 when it is none. */
unsigned os_term_width(int fd);
/* Colour wanted: fd is a terminal, NO_COLOR is unset or empty, TERM is not "dumb". */
bool os_term_color(int fd);

enum os_style { OS_PLAIN, OS_BOLD, OS_DIM, OS_RED, OS_GREEN, OS_YELLOW, OS_CYAN };
/* What begins a style and what ends it; both "" when color is false or the style is OS_PLAIN. */
const char *os_style_on(enum os_style style, bool color);
const char *os_style_off(enum os_style style, bool color);
/* Terminal columns that a text takes: wide East Asian characters and emoji are two, combining marks none. */
size_t os_text_width(struct str s);

/* A table: headings, cells, columns as wide as their widest cell (terminal columns, not bytes), two spaces between; the last column is never padded. */
struct os_table;
enum os_align { OS_LEFT, OS_RIGHT };
struct os_table *os_table_new(const char *const *headings, const enum os_align *aligns, size_t n_columns) BASE_MUST_USE;
struct os_table *os_table_free(struct os_table *t);
/* Cells in order, row by row; text is copied, outside bytes made printable. */
void os_table_cell(struct os_table *t, enum os_style style, const char *fmt, ...) BASE_PRINTF(3, 4);
/* The text with colour when color; -ENOMEM, or -EINVAL when the last row is incomplete. */
int os_table_text(struct os_table *t, bool color, struct buf *out) BASE_MUST_USE;

/* Takes a terminal over for a live view: another screen, keys as they are pressed, no cursor. One at a time. Whatever ends the program, the terminal is as it was; SIGINT, SIGTERM, SIGHUP and SIGQUIT are kept
 * until os_screen_end, which sends them again; Ctrl-Z and fg work. */
int os_screen_begin(int in, int out, struct err *err) BASE_MUST_USE;
void os_screen_end(void);
void os_screen_size(unsigned *ret_columns, unsigned *ret_rows);
enum { OS_KEY_NONE, OS_KEY_UP = 256, OS_KEY_DOWN, OS_KEY_PAGE_UP, OS_KEY_PAGE_DOWN, OS_KEY_HOME, OS_KEY_END, OS_KEY_ENTER, OS_KEY_ESCAPE, OS_KEY_OTHER, OS_KEY_RESIZED, OS_KEY_OVER };
/* Waits for a key: its character, or one of the above. NONE: nothing came in time. RESIZED: all must be drawn again. OVER: a signal asks for an end, or the terminal is gone. */
int os_screen_key(uint64_t timeout_ms) BASE_MUST_USE;
/* Appends a line that may hold colours, cut at so many columns; marked: as the selected one, without its colours. Clears the rest of the row. */
void os_screen_line(struct buf *out, struct str line, unsigned columns, bool marked);

/* Progress on stderr: lines that are redrawn in place on a terminal; elsewhere one line per finished step. Several tasks may run at once. */
struct os_progress;
struct os_progress *os_progress_new(int fd, const struct clk *clk) BASE_MUST_USE;
struct os_progress *os_progress_free(struct os_progress *p); /* leaves the last state on the screen */
/* Sets task `subject`'s line. total 0: no bar. done_style: OS_PLAIN while it runs; any other marks the task finished: its line is then
 * printed for good. The time since the task's first line is added here, so text says none: "ready" becomes "alpha: ready in 0.6 s",
 * with OS_RED and OS_YELLOW "alpha: engine died after 0.6 s"; a task that never ran gets no time. */
void os_progress_set(struct os_progress *p, const char *subject, const char *text, uint64_t done, uint64_t total, enum os_style done_style);
/* A message above the progress lines. */
void os_progress_say(struct os_progress *p, enum os_style style, const char *fmt, ...) BASE_PRINTF(3, 4);
