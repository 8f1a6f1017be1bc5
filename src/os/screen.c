/* SPDX-License-Identifier: MIT
 *
 * A terminal taken over: another screen, keys as they are pressed, no cursor. What was there comes back whatever ends it: a return, a signal that asks for an end, a stop and continuation
 * from the shell, exit(), a crash. Signals that ask for an end are kept by os_interrupt_begin; those of a crash put the terminal right from their handler, which needs no
 * more than two calls that are safe there, and then do what they would have done.
 */
#include "os_int.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define ESCAPE_MS 30 /* bytes of one key come together; a lone ESC is the key itself */

static const int looked_at[] = {SIGWINCH, SIGTSTP, SIGCONT}, crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
static const char enter[] = "\033[?1049h\033[?25l\033[?7l\033[2J", leave[] = "\033[?7h\033[?25h\033[?1049l";

static struct {
    int in, out;
    struct termios before;
    struct sigaction old[BASE_COUNT(looked_at)], old_crash[BASE_COUNT(crashes)];
    unsigned char pending[64];
    size_t n_pending;
} screen;
static volatile sig_atomic_t on;
static volatile sig_atomic_t wake_fd = -1;
static volatile sig_atomic_t sized, stopped;

static void restore(void)
{
    if (!on)
        return;
    on = 0;
    ssize_t ignored = write(screen.out, leave, sizeof leave - 1);
    (void)ignored;
    (void)tcsetattr(screen.in, TCSANOW, &screen.before);
}

static void on_signal(int sig)
{
    const uint64_t one = 1;
    int before = errno;
    if (sig == SIGTSTP)
        stopped = 1;
    else
        sized = 1;
    ssize_t ignored = wake_fd >= 0 ? write(wake_fd, &one, sizeof one) : 0;
    (void)ignored;
    errno = before;
}

static void on_crash(int sig)
{
    restore();
    (void)raise(sig); /* its handler is the default one again */
}

static int take(void)
{
    struct termios raw = screen.before;
    raw.c_iflag &= ~(tcflag_t)(ICRNL | IXON | INLCR | IGNCR);
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO | IEXTEN); /* ISIG stays: Ctrl-C and Ctrl-Z are signals */
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    if (tcsetattr(screen.in, TCSANOW, &raw) < 0)
        return -errno;
    on = 1;
    ssize_t ignored = write(screen.out, enter, sizeof enter - 1);
    (void)ignored;
    sized = 1;
    return 0;
}

int os_screen_begin(int in, int out, struct err *err)
{
    static bool at_exit;
    if (tcgetattr(in, &screen.before) < 0)
        return err_sys(err, -errno, "cannot use the terminal");
    screen.in = in;
    screen.out = out;
    screen.n_pending = 0;
    if (wake_fd < 0)
        wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!at_exit)
        at_exit = atexit(restore) == 0;
    os_interrupt_begin();
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, crash = {.sa_handler = on_crash, .sa_flags = (int)SA_RESETHAND};
    for (size_t i = 0; i < BASE_COUNT(looked_at); i++)
        (void)sigaction(looked_at[i], &a, &screen.old[i]);
    for (size_t i = 0; i < BASE_COUNT(crashes); i++)
        (void)sigaction(crashes[i], &crash, &screen.old_crash[i]);
    int rc = take();
    if (rc < 0) {
        os_screen_end();
        return err_sys(err, rc, "cannot use the terminal");
    }
    return 0;
}

void os_screen_end(void)
{
    restore();
    for (size_t i = 0; i < BASE_COUNT(looked_at); i++)
        (void)sigaction(looked_at[i], &screen.old[i], NULL);
    for (size_t i = 0; i < BASE_COUNT(crashes); i++)
        (void)sigaction(crashes[i], &screen.old_crash[i], NULL);
    os_interrupt_end(); /* what asked for an end is sent again here */
}

void os_screen_size(unsigned *ret_columns, unsigned *ret_rows)
{
    struct winsize size = {0};
    bool known = ioctl(screen.out, TIOCGWINSZ, &size) == 0 && size.ws_col && size.ws_row;
    *ret_columns = known ? size.ws_col : 80;
    *ret_rows = known ? size.ws_row : 24;
}

/* ---- keys ---------------------------------------------------------------------------------------------------- */

static void drop(size_t n)
{
    screen.n_pending -= n;
    memmove(screen.pending, screen.pending + n, screen.n_pending);
}

/* The sequence at the front, which begins with ESC: the arrow keys and their like come as "ESC [ A" or "ESC O A". What is not known is passed over. */
static int escape(void)
{
    static const struct {
        char last;
        int key;
    } keys[] = {{'A', OS_KEY_UP}, {'B', OS_KEY_DOWN}, {'H', OS_KEY_HOME}, {'F', OS_KEY_END}};
    const unsigned char *p = screen.pending;
    size_t n = 2;
    if (screen.n_pending < 2 || (p[1] != '[' && p[1] != 'O')) {
        drop(1);
        return OS_KEY_ESCAPE;
    }
    while (n < screen.n_pending && (p[n] < 0x40 || p[n] > 0x7e))
        n++;
    int key = OS_KEY_OTHER;
    for (size_t i = 0; i < BASE_COUNT(keys) && n < screen.n_pending; i++)
        if (p[n] == (unsigned char)keys[i].last)
            key = keys[i].key;
    if (n < screen.n_pending && p[n] == '~')
        key = p[2] == '5' ? OS_KEY_PAGE_UP : p[2] == '6' ? OS_KEY_PAGE_DOWN : OS_KEY_OTHER;
    drop(n < screen.n_pending ? n + 1 : n);
    return key;
}

static int next_key(void)
{
    if (screen.pending[0] == 0x1b)
        return escape();
    unsigned char c = screen.pending[0];
    drop(1);
    return c == '\r' || c == '\n' ? OS_KEY_ENTER : c < 0x80 ? c : OS_KEY_OTHER;
}

/* False at the end of input. */
static bool read_keys(void)
{
    struct pollfd more = {.fd = screen.in, .events = POLLIN};
    do {
        ssize_t n = read(screen.in, screen.pending + screen.n_pending, sizeof screen.pending - screen.n_pending);
        if (n <= 0)
            return n < 0 && (errno == EAGAIN || errno == EINTR);
        screen.n_pending += (size_t)n;
    } while (screen.pending[0] == 0x1b && screen.n_pending < 3 && poll(&more, 1, ESCAPE_MS) > 0);
    return true;
}

static void stop_here(void)
{
    restore();
    (void)raise(SIGSTOP);
    if (take() < 0) /* the terminal is gone */
        on = 0;
}

/* Takes what the wake-up was for; OS_KEY_NONE: nothing to tell. */
static int woken(void)
{
    uint64_t count;
    ssize_t ignored = read(wake_fd, &count, sizeof count);
    (void)ignored;
    if (stopped) {
        stopped = 0;
        stop_here();
    }
    if (!sized)
        return OS_KEY_NONE;
    sized = 0;
    return OS_KEY_RESIZED;
}

int os_screen_key(uint64_t timeout_ms)
{
    if (screen.n_pending)
        return next_key();
    struct pollfd f[] = {{.fd = screen.in, .events = POLLIN}, {.fd = wake_fd, .events = POLLIN}, {.fd = os_interrupt_fd(), .events = POLLIN}};
    if (sized)
        return woken();
    int n = poll(f, BASE_COUNT(f), timeout_ms > INT32_MAX ? INT32_MAX : (int)timeout_ms);
    if (os_interrupted())
        return OS_KEY_OVER;
    if (n < 0)
        return errno == EINTR ? OS_KEY_NONE : OS_KEY_OVER;
    if (f[1].revents)
        return woken();
    if (f[0].revents)
        return !read_keys() ? OS_KEY_OVER : screen.n_pending ? next_key() : OS_KEY_OVER;
    return OS_KEY_NONE;
}

/* ---- lines ---------------------------------------------------------------------------------------------------------- */

/* The length of the escape sequence at the front; 0: there is none. */
static size_t sequence(struct str s)
{
    size_t n = 2;
    if (s.len < 2 || s.ptr[0] != '\033' || s.ptr[1] != '[')
        return 0;
    while (n < s.len && ((unsigned char)s.ptr[n] < 0x40 || (unsigned char)s.ptr[n] > 0x7e))
        n++;
    return n < s.len ? n + 1 : s.len;
}

void os_screen_line(struct buf *out, struct str line, unsigned columns, bool marked)
{
    size_t used = 0;
    if (marked)
        buf_add_c(out, "\033[7m");
    while (line.len) {
        size_t n = sequence(line);
        if (n && !marked)
            buf_add(out, line.ptr, n);
        if (!n) {
            ptrdiff_t next = str_find_char((struct str){line.ptr + 1, line.len - 1}, '\033');
            n = next < 0 ? line.len : (size_t)next + 1;
            struct str cut = os_text_cut((struct str){line.ptr, n}, columns - used);
            buf_add_str(out, cut);
            used += os_text_width(cut);
        }
        line.ptr += n;
        line.len -= n;
    }
    for (; marked && used < columns; used++)
        buf_add_char(out, ' ');
    buf_add_c(out, "\033[0m\033[K");
}
