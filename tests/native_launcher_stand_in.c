/* Stands in for skerry-init in tests of the launcher: reads its configuration, then answers one line a
 * connection. Static, for the sandbox of the tests has no library; no privilege, as the agent. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static char out[60000], config[60000];

static int waiting(void) /* leaves a connection in TIME_WAIT */
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(80), .sin_addr = {htonl(0x7f000001)}};
	int l = socket(AF_INET, SOCK_STREAM, 0), c = socket(AF_INET, SOCK_STREAM, 0), s;

	if (bind(l, (void *)&a, sizeof(a)) || listen(l, 1) || connect(c, (void *)&a, sizeof(a)))
		return errno;
	s = accept(l, NULL, NULL);
	close(c), usleep(1000), close(s), close(l), usleep(1000);
	return 0;
}

static int deep(int n)
{
	if (chdir("/tmp"))
		return errno;
	while (n--)
		if (mkdir("d", 0700) || close(creat("f", 0)) || chdir("d"))
			return errno;
	return 0;
}

static int fill(int mib)
{
	int fd = open("/tmp/full", O_WRONLY | O_CREAT, 0600), err = fd < 0 ? errno : 0;

	for (int i = 0; i < mib * 32 && !err; i++)
		if (write(fd, out, 32768) < 0 || (i % 32 == 0 && fsync(fd)))
			err = errno;
	return err;
}

static int refused(void)
{
	int n = 0;

	n += unshare(CLONE_NEWUSER) < 0 && errno == EPERM;
	n += mount("a", "/tmp", "tmpfs", 0, 0) < 0 && errno == EPERM;
	n += socket(AF_PACKET, SOCK_RAW, 0) < 0 && errno == EAFNOSUPPORT;
	return n;
}

int main(void)
{
	int n = 0, got;
	char line[256];

	while ((got = read(7, config + n, sizeof(config) - n)) > 0)
		n += got;
	close(7);
	for (;;) {
		int c = accept(3, NULL, NULL), used = 0, arg;

		got = read(c, line, sizeof(line) - 1);
		line[got < 0 ? 0 : got] = 0;
		arg = strchr(line, ' ') ? atoi(strchr(line, ' ') + 1) : 0;
		if (!strncmp(line, "fds", 3))
			for (int i = 0; i < 1000; i++)
				used += fcntl(i, F_GETFD) < 0 ? 0 : sprintf(out + used, "%d ", i);
		else if (!strncmp(line, "cat ", 4)) {
			int f = open(line + 4, O_RDONLY);
			while ((got = read(f, out + used, sizeof(out) - used)) > 0)
				used += got;
		} else if (!strncmp(line, "config", 6))
			memcpy(out, config, used = n);
		else if (!strncmp(line, "tasks", 5))
			used = sprintf(out, "%d", (int)write(8, "0", 1));
		else if (!strncmp(line, "exit", 4))
			_exit(arg);
		else
			used = sprintf(out, "%d", line[0] == 'w' ? waiting() : line[0] == 'd' ? deep(arg)
				       : line[0] == 'f' ? fill(arg) : refused());
		if (write(c, out, used) < 0)
			return 1;
		close(c);
	}
}
