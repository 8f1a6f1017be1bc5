/* SPDX-License-Identifier: MIT
 *
 * Files, trees, names, locks, digests and the folders berth uses, in a temporary folder.
 */
#include <os/os.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

struct place {
    char path[64];
    int fd;
};

static int setup(void **state)
{
    struct place *p = calloc(1, sizeof(*p));
    snprintf(p->path, sizeof(p->path), "/tmp/berth-test-XXXXXX");
    if (!mkdtemp(p->path))
        return -1;
    p->fd = os_open_dir(p->path, NULL);
    *state = p;
    return p->fd < 0;
}

static int teardown(void **state)
{
    struct place *p = *state;
    struct err err = {0};
    int tmp = os_open_dir("/tmp", NULL);
    int r = os_remove_tree(tmp, p->path + strlen("/tmp/"), &err);
    if (r < 0)
        print_error("%s\n", err.text);
    close(tmp);
    close(p->fd);
    free(p);
    return r;
}

static void put(int dirfd, const char *name, const char *text)
{
    int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(os_write_all(fd, text, strlen(text), NULL), 0);
    close(fd);
}

static void assert_content(int dirfd, const char *name, const char *text)
{
    base_autobuf struct buf b = BUF_INIT(1 << 20);
    struct err err = {0};
    if (os_read_file(dirfd, name, &b, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(b.ptr, text);
}

static bool exists(int dirfd, const char *name)
{
    struct stat st;
    return fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static size_t count_entries(int dirfd);

/* ---- reading and writing ------------------------------------------------------------------------- */

static void test_read(void **state)
{
    struct place *p = *state;
    struct err err = {0};
    char path[128];
    snprintf(path, sizeof(path), "%s/none", p->path);
    base_autobuf struct buf b = BUF_INIT(10);
    assert_int_equal(os_read_file(p->fd, "none", &b, &err), -ENOENT);
    assert_non_null(strstr(err.text, path)); /* the whole path, though only a name was given */
    put(p->fd, "ten", "0123456789");
    assert_int_equal(os_read_file(p->fd, "ten", &b, &err), 0);
    assert_string_equal(b.ptr, "0123456789");
    buf_clear(&b);
    buf_add_c(&b, "x");
    assert_int_equal(os_read_file(p->fd, "ten", &b, &err), -EFBIG);
    assert_string_equal(b.ptr, "x");
    assert_non_null(strstr(err.text, "larger than 9 B"));
    put(p->fd, "nine", "012345678");
    assert_int_equal(os_read_file(p->fd, "nine", &b, &err), 0);
    assert_string_equal(b.ptr, "x012345678");
    buf_clear(&b);
    put(p->fd, "empty", "");
    assert_int_equal(os_read_file(p->fd, "empty", &b, &err), 0);
    assert_int_equal(b.len, 0);
    base_autobuf struct buf nothing = BUF_INIT(0);
    assert_int_equal(os_read_file(p->fd, "empty", &nothing, &err), 0);
    assert_int_equal(os_read_file(p->fd, "ten", &nothing, &err), -EFBIG);
}

static void test_read_special(void **state)
{
    struct place *p = *state;
    struct err err = {0};
    base_autobuf struct buf b = BUF_INIT(1 << 20);
    assert_int_equal(mkfifoat(p->fd, "pipe", 0600), 0);
    assert_int_equal(os_read_file(p->fd, "pipe", &b, &err), -EINVAL); /* and does not wait for a writer */
    assert_non_null(strstr(err.text, "not a regular file"));
    assert_int_equal(os_read_file(AT_FDCWD, p->path, &b, &err), -EISDIR);
    assert_int_equal(os_read_file(AT_FDCWD, "/proc/self/status", &b, &err), 0); /* its size is said to be 0 */
    assert_true(str_starts(buf_str(&b), STR("Name:")));
    base_autobuf struct buf small = BUF_INIT(20);
    assert_int_equal(os_read_file(AT_FDCWD, "/proc/self/status", &small, &err), -EFBIG);
    assert_int_equal(small.len, 0);
}

static void test_pipe(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    pid_t pid = fork();
    if (pid == 0) {
        /* More than a pipe holds, through a descriptor that does not block. */
        static char data[300000];
        memset(data, 'd', sizeof(data));
        close(ends[0]);
        _exit(os_write_all(ends[1], data, sizeof(data), NULL) == 0 ? 0 : 1);
    }
    close(ends[1]);
    base_autobuf struct buf b = BUF_INIT(1 << 20);
    assert_int_equal(os_read_all(ends[0], &b, NULL), 0);
    assert_int_equal(b.len, 300000);
    close(ends[0]);
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    struct err err = {0};
    assert_int_equal(os_read_all(-1, &b, &err), -EBADF);
    assert_int_equal(os_write_all(-1, "x", 1, &err), -EBADF);
    assert_true(str_starts(str_of(err.text), STR("cannot write")));
}

static void test_write_atomic(void **state)
{
    struct place *p = *state;
    struct err err = {0};
    struct stat st;
    mode_t before = umask(077);
    assert_int_equal(os_write_atomic(p->fd, "f", "old", 3, 0644, &err), 0);
    umask(before);
    assert_content(p->fd, "f", "old");
    assert_int_equal(fstatat(p->fd, "f", &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0644);
    assert_int_equal(os_write_atomic(p->fd, "f", "new!", 4, 0600, &err), 0);
    assert_content(p->fd, "f", "new!");
    assert_int_equal(fstatat(p->fd, "f", &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(os_write_atomic(p->fd, "f", NULL, 0, 0600, &err), 0);
    assert_content(p->fd, "f", "");
    /* A link is replaced, not written through. */
    put(p->fd, "target", "kept");
    assert_int_equal(symlinkat("target", p->fd, "link"), 0);
    assert_int_equal(os_write_atomic(p->fd, "link", "x", 1, 0600, &err), 0);
    assert_content(p->fd, "target", "kept");
    assert_content(p->fd, "link", "x");
    assert_int_equal(os_write_atomic(p->fd, "a/b", "x", 1, 0600, &err), -EINVAL);
    assert_int_equal(os_write_atomic(p->fd, "..", "x", 1, 0600, &err), -EINVAL);
    assert_int_equal(count_entries(p->fd), 3);
}

static void test_replace_atomic(void **state)
{
    struct place *p = *state;
    struct err err = {0};
    struct stat st;
    const bool root = geteuid() == 0;
    assert_int_equal(os_replace_atomic(p->fd, "f", "x", 1, &err), -ENOENT);
    put(p->fd, "f", "old");
    assert_int_equal(fchmodat(p->fd, "f", 0640, 0), 0);
    if (root)
        assert_int_equal(fchownat(p->fd, "f", 4711, 4712, 0), 0);
    assert_int_equal(os_replace_atomic(p->fd, "f", "new!", 4, &err), 0);
    assert_content(p->fd, "f", "new!");
    assert_int_equal(fstatat(p->fd, "f", &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0640);
    assert_int_equal(st.st_uid, root ? 4711 : geteuid());
    if (root)
        assert_int_equal(st.st_gid, 4712);
    assert_int_equal(symlinkat("f", p->fd, "link"), 0);
    assert_int_equal(os_replace_atomic(p->fd, "link", "x", 1, &err), -EINVAL);
    assert_int_equal(fchmodat(p->fd, "f", 0440, 0), 0);
    assert_int_equal(os_replace_atomic(p->fd, "f", "more", 4, &err), root ? 0 : -EACCES);
    assert_content(p->fd, "f", root ? "more" : "new!");
    assert_int_equal(count_entries(p->fd), 2);
}

static void test_put_file(void **state)
{
    struct place *p = *state;
    struct err err = {0};
    struct stat st;
    const bool root = geteuid() == 0;
    char path[4104], link[4104], fd[32];
    snprintf(fd, sizeof(fd), "/proc/self/fd/%d", p->fd);
    base_autofree char *dir = realpath(fd, NULL);
    assert_non_null(dir);
    snprintf(path, sizeof(path), "%s/f", dir);
    snprintf(link, sizeof(link), "%s/link", dir);
    assert_int_equal(os_put_file(path, "new", 3, 0640, &err), 0); /* one that was not there */
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0640);
    assert_int_equal(chmod(path, 0604), 0);
    if (root)
        assert_int_equal(chown(path, 4711, 4712), 0);
    assert_int_equal(symlink("f", link), 0);
    assert_int_equal(os_put_file(link, "other", 5, 0644, &err), 0); /* the link stays */
    assert_content(p->fd, "f", "other");
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0604);
    assert_int_equal(st.st_uid, root ? 4711 : geteuid());
    if (!root) { /* ours, and not to be written to */
        assert_int_equal(chmod(path, 0400), 0);
        assert_int_equal(os_put_file(path, "x", 1, 0644, &err), -EACCES);
        assert_content(p->fd, "f", "other");
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(os_put_file(link, "x", 1, 0644, &err), -ENOENT); /* it leads nowhere */
    assert_non_null(strstr(err.text, "cannot write '"));
    assert_int_equal(mkdir(path, 0755), 0);
    assert_int_equal(os_put_file(path, "x", 1, 0644, &err), -EINVAL);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(symlink("f", path), 0);
    assert_int_equal(os_put_file(path, "x", 1, 0644, &err), -ELOOP);
    assert_int_equal(os_put_file("/nonexistent/f", "x", 1, 0644, &err), -ENOENT);
    assert_int_equal(count_entries(p->fd), 2);
}

static void test_write_sweep(void **state)
{
    struct place *p = *state;
    put(p->fd, ".berth-0123456789abcdef", "half");
    put(p->fd, ".berth-rc", "a person's");
    put(p->fd, "f", "kept");
    os_write_sweep(p->fd);
    assert_int_equal(faccessat(p->fd, ".berth-0123456789abcdef", F_OK, 0), -1);
    assert_content(p->fd, ".berth-rc", "a person's");
    assert_content(p->fd, "f", "kept");
    os_write_sweep(-1);
}

/* The disk is "full" at 8 KiB: the old content stays and no temporary file is left. */
static void test_write_atomic_fails(void **state)
{
    struct place *p = *state;
    struct err err = {0};
    static char big[65536];
    assert_int_equal(os_write_atomic(p->fd, "f", "old", 3, 0600, &err), 0);
    struct rlimit limit, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit;
    small.rlim_cur = 8192;
    void (*usual)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int r = os_write_atomic(p->fd, "f", big, sizeof(big), 0600, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, usual);
    assert_int_equal(r, -EFBIG);
    assert_non_null(strstr(err.text, "/f'"));
    assert_content(p->fd, "f", "old");
    /* The same when the rename is what fails. */
    assert_int_equal(mkdirat(p->fd, "dir", 0700), 0);
    assert_int_equal(os_write_atomic(p->fd, "dir", "x", 1, 0600, &err), -EISDIR);
    assert_int_equal(count_entries(p->fd), 2);
}

static void test_copy(void **state)
{
    struct place *p = *state;
    struct err err = {0};
    struct stat st;
    base_autobuf struct buf b = BUF_INIT(1 << 20);
    for (unsigned i = 0; i < 40000; i++)
        buf_addf(&b, "%06u ", i);
    put(p->fd, "a", b.ptr);
    assert_int_equal(os_copy_file(p->fd, "a", p->fd, "b", 0640, &err), 0);
    assert_content(p->fd, "b", b.ptr);
    assert_int_equal(fstatat(p->fd, "b", &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0640);
    assert_int_equal(os_copy_file(p->fd, "a", p->fd, "b", 0640, &err), -EEXIST);
    assert_int_equal(os_copy_file(p->fd, "none", p->fd, "c", 0640, &err), -ENOENT);
    assert_int_equal(os_copy_file(AT_FDCWD, p->path, p->fd, "c", 0640, &err), -EISDIR);
    assert_false(exists(p->fd, "c"));
    /* From a file system that helps with nothing. */
    assert_int_equal(os_copy_file(AT_FDCWD, "/proc/self/limits", p->fd, "limits", 0600, &err), 0);
    assert_int_equal(fstatat(p->fd, "limits", &st, 0), 0);
    assert_true(st.st_size > 100);
}

/* ---- trees --------------------------------------------------------------------------------------- */

static void test_make_dirs(void **state)
{
    struct place *p = *state;
    struct err err = {0};
    struct stat st;
    char path[128];
    mode_t before = umask(0);
    snprintf(path, sizeof(path), "%s/a//b/c/", p->path);
    assert_int_equal(os_make_dirs(path, 0700, &err), 0);
    assert_int_equal(os_make_dirs(path, 0700, &err), 0);
    umask(before);
    assert_int_equal(fstatat(p->fd, "a/b", &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0711);
    assert_int_equal(fstatat(p->fd, "a/b/c", &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    put(p->fd, "a/file", "");
    snprintf(path, sizeof(path), "%s/a/file", p->path);
    assert_int_equal(os_make_dirs(path, 0700, &err), -ENOTDIR);
    snprintf(path, sizeof(path), "%s/a/file/x", p->path);
    assert_int_equal(os_make_dirs(path, 0700, &err), -ENOTDIR);
    assert_non_null(strstr(err.text, "a/file'"));
    assert_int_equal(os_make_dirs("/", 0700, &err), 0);
    assert_int_equal(os_open_dir(path, &err), -ENOTDIR);
}

static int note(void *ctx, const struct os_entry *e, struct err *err)
{
    (void)err;
    struct stat st;
    assert_int_equal(fstatat(e->dirfd, e->name, &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_int_equal(st.st_mode, e->mode);
    char kind = S_ISDIR(e->mode) ? 'd' : S_ISLNK(e->mode) ? 'l' : 'f';
    buf_addf(ctx, "%c %s %d\n", kind, e->path, S_ISREG(e->mode) ? (int)e->size : 0);
    return 0;
}

static int count(void *ctx, const struct os_entry *e, struct err *err)
{
    (void)e;
    (void)err;
    ++*(size_t *)ctx;
    return 0;
}

static size_t count_entries(int dirfd)
{
    size_t n = 0;
    assert_int_equal(os_walk(dirfd, count, &n, NULL), 0);
    return n;
}

static int stop_at_b(void *ctx, const struct os_entry *e, struct err *err)
{
    (void)ctx;
    return strcmp(e->path, "b") == 0 ? err_set(err, -ECANCELED, "stopped at %s", e->path) : 0;
}

static void test_walk(void **state)
{
    struct place *p = *state;
    struct err err = {0};
    assert_int_equal(mkdirat(p->fd, "b", 0700), 0);
    assert_int_equal(mkdirat(p->fd, "b/sub", 0700), 0);
    put(p->fd, "b/sub/x", "123");
    put(p->fd, "b/\xC3\xA4", "");
    put(p->fd, "b/Z", "1");
    put(p->fd, "a", "12");
    put(p->fd, "b-", "");
    assert_int_equal(symlinkat("/", p->fd, "b/root"), 0);
    base_autobuf struct buf seen = BUF_INIT(10000);
    assert_int_equal(os_walk(p->fd, note, &seen, &err), 0);
    assert_string_equal(seen.ptr, "f a 2\nd b 0\nf b/Z 1\nl b/root 0\nd b/sub 0\nf b/sub/x 3\nf b/\xC3\xA4 0\nf b- 0\n");
    assert_int_equal(os_walk(p->fd, stop_at_b, NULL, &err), -ECANCELED);
    assert_string_equal(err.text, "stopped at b");
    assert_int_equal(count_entries(p->fd), 8);
}

static void test_walk_depth(void **state)
{
    struct place *p = *state;
    struct err err = {0};
    int fd = dup(p->fd);
    for (unsigned i = 0; i < OS_WALK_DEPTH; i++) {
        assert_int_equal(mkdirat(fd, "d", 0700), 0);
        int next = openat(fd, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(next >= 0);
        close(fd);
        fd = next;
    }
    assert_int_equal(count_entries(p->fd), OS_WALK_DEPTH);
    put(fd, "x", "");
    close(fd);
    size_t n = 0;
    assert_int_equal(os_walk(p->fd, count, &n, &err), -ELOOP);
    assert_int_equal(n, OS_WALK_DEPTH);
}

static void test_remove_tree(void **state)
{
    struct place *p = *state;
    struct err err = {0};
    assert_int_equal(os_remove_tree(p->fd, "absent", &err), 0);
    put(p->fd, "file", "x");
    assert_int_equal(os_remove_tree(p->fd, "file", &err), 0);
    assert_false(exists(p->fd, "file"));
    /* A tree with links to what must stay, a read-only folder and a pipe. */
    assert_int_equal(mkdirat(p->fd, "outside", 0700), 0);
    put(p->fd, "outside/keep", "kept");
    char target[128];
    snprintf(target, sizeof(target), "%s/outside", p->path);
    assert_int_equal(mkdirat(p->fd, "t", 0700), 0);
    assert_int_equal(mkdirat(p->fd, "t/deep", 0700), 0);
    assert_int_equal(symlinkat(target, p->fd, "t/abs"), 0);
    assert_int_equal(symlinkat("../../outside", p->fd, "t/deep/rel"), 0);
    assert_int_equal(symlinkat("../../outside/keep", p->fd, "t/deep/file"), 0);
    assert_int_equal(symlinkat("..", p->fd, "t/deep/up"), 0);
    assert_int_equal(mkfifoat(p->fd, "t/pipe", 0600), 0);
    put(p->fd, "t/deep/x", "x");
    assert_int_equal(fchmodat(p->fd, "t/deep", 0555, 0), 0);
    assert_int_equal(os_remove_tree(p->fd, "t", &err), 0);
    assert_false(exists(p->fd, "t"));
    assert_content(p->fd, "outside/keep", "kept");
    /* A link itself is removed, not what it names. */
    assert_int_equal(symlinkat("outside", p->fd, "l"), 0);
    assert_int_equal(os_remove_tree(p->fd, "l", &err), 0);
    assert_false(exists(p->fd, "l"));
    assert_content(p->fd, "outside/keep", "kept");
    assert_int_equal(os_remove_tree(p->fd, "..", &err), -EINVAL);
    assert_int_equal(os_remove_tree(p->fd, "outside/keep", &err), -EINVAL);
    assert_int_equal(os_remove_tree(p->fd, "", &err), -EINVAL);
    /* by its path */
    snprintf(target, sizeof(target), "%s/by-path", p->path);
    assert_int_equal(mkdirat(p->fd, "by-path", 0700), 0);
    put(p->fd, "by-path/file", "x");
    assert_int_equal(os_remove_path("by-path", &err), -EINVAL);
    assert_true(exists(p->fd, "by-path/file"));
    assert_int_equal(os_remove_path(target, &err), 0);
    assert_false(exists(p->fd, "by-path"));
    assert_int_equal(os_remove_path(target, &err), 0);
    assert_int_equal(os_remove_path("/", &err), -EINVAL);
}

static void test_names(void **state)
{
    (void)state;
    assert_true(os_name_valid(STR("a")));
    assert_true(os_name_valid(STR("..a")));
    assert_true(os_name_valid(STR("-x \xC3\xA4")));
    assert_false(os_name_valid(STR("")));
    assert_false(os_name_valid(STR(".")));
    assert_false(os_name_valid(STR("..")));
    assert_false(os_name_valid(STR("a/b")));
    assert_false(os_name_valid(STR("a\0b")));
    assert_false(os_name_valid(STR("a\nb")));
    assert_false(os_name_valid(STR("a\x7F")));
    char name[256];
    memset(name, 'n', sizeof(name));
    assert_true(os_name_valid((struct str){name, 255}));
    assert_false(os_name_valid((struct str){name, 256}));
    assert_true(os_relpath_valid(STR("a/b/c.gguf")));
    assert_false(os_relpath_valid(STR("/a")));
    assert_false(os_relpath_valid(STR("a/")));
    assert_false(os_relpath_valid(STR("a//b")));
    assert_false(os_relpath_valid(STR("a/../b")));
    assert_false(os_relpath_valid(STR("./a")));
    assert_false(os_relpath_valid(STR("")));
    char path[5000];
    for (size_t i = 0; i < sizeof(path); i++)
        path[i] = i % 2 ? '/' : 'a';
    assert_true(os_relpath_valid((struct str){path, 4095}));
    assert_false(os_relpath_valid((struct str){path, 4097}));
}

/* A path that is long or hostile still gives a message of people's size without control bytes. */
static void test_error_path(void **state)
{
    (void)state;
    struct err err = {0};
    base_autobuf struct buf b = BUF_INIT(10), path = BUF_INIT(8000);
    buf_add_c(&path, "/\033[31m");
    for (unsigned i = 0; i < 500; i++)
        buf_add_c(&path, "/\xE2\x82\xAC\xE2\x82\xAC");
    buf_add_c(&path, "/the-end");
    assert_int_equal(os_read_file(AT_FDCWD, path.ptr, &b, &err), -ENOENT);
    assert_null(strchr(err.text, '\033'));
    assert_true(str_is_utf8(str_of(err.text)));
    assert_non_null(strstr(err.text, "the-end': No such file or directory"));
    assert_int_equal(os_read_file(AT_FDCWD, "/\033x", &b, &err), -ENOENT);
    assert_string_equal(err.text, "cannot open '/\\x1bx': No such file or directory");
}

/* ---- locks --------------------------------------------------------------------------------------- */

static void test_lock(void **state)
{
    struct place *p = *state;
    struct err err = {0};
    char path[128];
    snprintf(path, sizeof(path), "%s/lock", p->path);
    int a = os_lock(path, false, false, &err);
    int b = os_lock(path, false, false, &err);
    assert_true(a >= 0 && b >= 0);
    assert_int_equal(os_lock(path, true, false, &err), -EWOULDBLOCK);
    assert_non_null(strstr(err.text, path));
    close(a);
    close(b);
    a = os_lock(path, true, false, &err);
    assert_true(a >= 0);
    assert_int_equal(os_lock(path, false, false, &err), -EWOULDBLOCK);
    assert_true(fcntl(a, F_GETFD) & FD_CLOEXEC);
    /* Whoever waits gets it when it is given back: the child says so through the pipe. */
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(a);
        ssize_t n = write(ends[1], "w", 1);
        int fd = os_lock(path, true, true, NULL);
        n += write(ends[1], fd >= 0 ? "y" : "n", 1);
        _exit(n == 2 ? 0 : 1);
    }
    char c = 0;
    assert_int_equal(read(ends[0], &c, 1), 1);
    close(a);
    assert_int_equal(read(ends[0], &c, 1), 1);
    assert_int_equal(c, 'y');
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(os_lock("/nowhere/lock", true, false, &err), -ENOENT);
}

/* ---- digests ------------------------------------------------------------------------------------- */

static void test_digest(void **state)
{
    struct place *p = *state;
    struct err err = {0};
    char hex[OS_SHA256_HEX];
    struct os_digest *d = os_digest_new();
    assert_non_null(d);
    assert_int_equal(os_digest_add(d, "a", 1), 0);
    assert_int_equal(os_digest_add(d, "bc", 2), 0);
    assert_int_equal(os_digest_hex(d, hex), 0);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_null(os_digest_free(d));
    assert_null(os_digest_free(NULL));
    put(p->fd, "empty", "");
    uint64_t bytes = 7;
    assert_int_equal(os_digest_file(p->fd, "empty", hex, &bytes, &err), 0);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_int_equal(bytes, 0);
    base_autofree char *million = malloc(1000001);
    memset(million, 'a', 1000000);
    million[1000000] = '\0';
    put(p->fd, "million", million);
    assert_int_equal(os_digest_file(p->fd, "million", hex, &bytes, &err), 0);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    assert_int_equal(bytes, 1000000);
    assert_int_equal(os_digest_file(p->fd, "million", hex, NULL, &err), 0);
    assert_int_equal(os_digest_file(p->fd, "none", hex, NULL, &err), -ENOENT);
    assert_int_equal(os_digest_file(AT_FDCWD, p->path, hex, NULL, &err), -EINVAL);
}

/* ---- folders ------------------------------------------------------------------------------------- */

static const char *const variables[] = {"BERTH_STATE", "BERTH_RUN", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "HOME"};

/* In a child of its own, since it changes the environment and gives up root for good. Exit 0 when as expected. */
static int in_child(int (*check)(void), uid_t uid)
{
    pid_t pid = fork();
    if (pid == 0) {
        for (size_t i = 0; i < BASE_COUNT(variables); i++)
            unsetenv(variables[i]);
        if (uid && setresuid(uid, uid, uid) < 0)
            _exit(100);
        _exit(check());
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static bool are(const char *state, const char *run, const char *config)
{
    struct os_dirs d = {0};
    struct err err = {0};
    if (os_dirs_find(&d, &err) < 0) {
        print_error("%s\n", err.text);
        return false;
    }
    bool right = strcmp(d.state, state) == 0 && strcmp(d.run, run) == 0 && strcmp(d.config, config) == 0;
    if (!right)
        print_error("%s %s %s\n", d.state, d.run, d.config);
    os_dirs_release(&d);
    return right && d.state == NULL;
}

static int check_root_dirs(void)
{
    setenv("XDG_STATE_HOME", "/x", 1); /* of no interest to root */
    if (!are("/var/lib/berth", "/run/berth", "/etc/berth"))
        return 1;
    setenv("BERTH_STATE", "/s/", 1);
    setenv("BERTH_RUN", "/r", 1);
    return are("/s", "/r", "/etc/berth") ? 0 : 2;
}

static int check_user_dirs(void)
{
    struct os_dirs d = {0};
    struct err err = {0};
    setenv("HOME", "/home/u//", 1);
    setenv("XDG_STATE_HOME", "", 1);
    if (!are("/home/u/.local/state/berth", "/home/u/.local/state/berth/run", "/home/u/.config/berth"))
        return 1;
    setenv("XDG_STATE_HOME", "/xs", 1);
    setenv("XDG_RUNTIME_DIR", "/run/user/1", 1);
    setenv("XDG_CONFIG_HOME", "/xc/", 1);
    if (!are("/xs/berth", "/run/user/1/berth", "/xc/berth"))
        return 2;
    setenv("BERTH_STATE", "/bs", 1);
    setenv("BERTH_RUN", "/br", 1);
    if (!are("/bs", "/br", "/xc/berth"))
        return 3;
    setenv("XDG_CONFIG_HOME", "rel/ative", 1);
    if (os_dirs_find(&d, &err) != -EINVAL || !strstr(err.text, "XDG_CONFIG_HOME is 'rel/ative'") || d.state)
        return 4;
    unsetenv("XDG_CONFIG_HOME");
    setenv("HOME", "relative", 1);
    return os_dirs_find(&d, &err) == -EINVAL ? 0 : 5;
}

/* Without HOME the account's entry is asked. */
static int check_no_home(void)
{
    struct os_dirs d = {0};
    struct err err = {0};
    int r = os_dirs_find(&d, &err);
    bool right = r == 0 ? d.config[0] == '/' : r == -ENOENT && strstr(err.text, "set HOME");
    os_dirs_release(&d);
    return right ? 0 : 1;
}

static void test_dirs(void **state)
{
    (void)state;
    uid_t user = geteuid() == 0 ? 65534 : 0; /* 0: stays who it is */
    if (geteuid() == 0)
        assert_int_equal(in_child(check_root_dirs, 0), 0);
    assert_int_equal(in_child(check_user_dirs, user), 0);
    assert_int_equal(in_child(check_no_home, user), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_read),         TEST(test_read_special),       TEST(test_pipe),        TEST(test_write_atomic),
        TEST(test_copy),         TEST(test_write_atomic_fails), TEST(test_write_sweep), TEST(test_replace_atomic), TEST(test_put_file),
        TEST(test_make_dirs),   TEST(test_walk),
        TEST(test_walk_depth),   TEST(test_remove_tree),        TEST(test_names),       TEST(test_error_path),
        TEST(test_lock),         TEST(test_digest),             TEST(test_dirs),
    };
    return cmocka_run_group_tests_name("os files", tests, NULL, NULL);
}
