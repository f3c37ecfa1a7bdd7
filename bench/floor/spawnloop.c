/* Starts one program over and over, in a closed loop: the client of the peers' benchmark.
 *
 * A Python client spends 0.3 to 0.7 ms of processor per start, which on a machine without idle
 * cores would be charged to the peer. This one spends next to nothing.
 *
 * Usage: spawnloop SECONDS WORKERS PROGRAM [ARGUMENT...]
 * In every argument `{id}` becomes a name that is unique over the run (runc wants one). The clock
 * of a life runs from before posix_spawn until the program has been reaped. Prints one line of
 * JSON. Exit status 0 if every life ended with status 0.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS_MAX = 64, SAMPLES_MAX = 1 << 18, ARGUMENTS_MAX = 128, LENGTH_MAX = 4096 };

struct worker {
    uint32_t lives, failures;
    uint32_t microseconds[SAMPLES_MAX];
};

/* In shared memory: a signal to any of the processes ends the run after the lives under way. */
static volatile sig_atomic_t *stopped;

static void on_signal(int number)
{
    (void)number;
    *stopped = 1;
}

static void *share(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        exit(2);
    return memory;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Writes the argument with its first `{id}` replaced; too long an argument is cut. */
static void fill_in(char *to, const char *from, const char *id)
{
    const char *mark = strstr(from, "{id}");
    if (mark)
        snprintf(to, LENGTH_MAX, "%.*s%s%s", (int)(mark - from), from, id, mark + 4);
    else
        snprintf(to, LENGTH_MAX, "%s", from);
}

static int run_once(char **program, const char *id)
{
    static char text[ARGUMENTS_MAX][LENGTH_MAX];
    static char *arguments[ARGUMENTS_MAX + 1];
    extern char **environ;
    pid_t pid;
    int status, count = 0;
    for (; program[count] && count < ARGUMENTS_MAX; count++) {
        fill_in(text[count], program[count], id);
        arguments[count] = text[count];
    }
    arguments[count] = NULL;
    if (posix_spawnp(&pid, arguments[0], NULL, NULL, arguments, environ) != 0)
        return -1;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -1;
}

static void work(struct worker *worker, int number, double deadline, char **program)
{
    char id[64];
    pid_t parent = getppid();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    for (unsigned i = 0; !*stopped && now() < deadline && worker->lives < SAMPLES_MAX; i++) {
        snprintf(id, sizeof id, "spawnloop-%d-%d-%u", (int)parent, number, i);
        double start = now();
        if (run_once(program, id) == 0)
            worker->microseconds[worker->lives++] = (uint32_t)((now() - start) * 1e6);
        else if (++worker->failures >= 10)
            break;
    }
    _exit(0);
}

static int ascending(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

static unsigned report(const struct worker *workers, int count, double seconds)
{
    size_t lives = 0, at = 0;
    unsigned failures = 0;
    for (int i = 0; i < count; i++) {
        lives += workers[i].lives;
        failures += workers[i].failures;
    }
    uint32_t *all = calloc(lives + 1, sizeof *all);
    if (!all)
        exit(2);
    for (int i = 0; i < count; at += workers[i++].lives)
        memcpy(all + at, workers[i].microseconds, workers[i].lives * sizeof *all);
    qsort(all, lives, sizeof *all, ascending);
    size_t last = lives ? lives - 1 : 0;
    printf("{\"lives\": %zu, \"seconds\": %.3f, \"lives_per_second\": %.1f, \"workers\": %d, "
           "\"p50_us\": %u, \"p99_us\": %u, \"max_us\": %u, \"failures\": %u}\n",
           lives, seconds, (double)lives / seconds, count, all[last / 2],
           all[(size_t)((double)last * 0.99 + 0.5)], all[last], failures);
    free(all);
    return failures;
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    double seconds = argc > 3 ? atof(argv[1]) : 0;
    int count = argc > 3 ? atoi(argv[2]) : 0;
    if (seconds <= 0 || count < 1 || count > WORKERS_MAX) {
        fprintf(stderr, "usage: spawnloop SECONDS WORKERS PROGRAM [ARGUMENT...]\n");
        return 2;
    }
    stopped = share(sizeof *stopped);
    struct worker *workers = share((size_t)count * sizeof *workers);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    double start = now();
    for (int i = 0; i < count; i++) {
        pid_t pid = fork();
        if (pid == 0)
            work(&workers[i], i, start + seconds, argv + 3);
        if (pid < 0)
            return 2;
    }
    while (wait(NULL) > 0 || errno == EINTR)
        ;
    return report(workers, count, now() - start) ? 1 : 0;
}
