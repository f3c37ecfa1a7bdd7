#include "launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

static int create(void)
{
	int fd = memfd_create("skerry-init", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_EXEC);

	/* Kernels before 6.3 do not know MFD_EXEC and need none. */
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create("skerry-init", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	return fd < 0 ? -errno : fd;
}

/* Mode 0711 is a protection: who executes a file that it cannot read is not dumpable, so that sandbox
 * root can neither trace nor inspect the agent and its file helpers (facts: privilege, 6.3). */
int image_load(const char *path)
{
	close_auto int from = open_at(AT_FDCWD, path, O_RDONLY);
	close_auto int fd = -1;
	char link[64];
	struct stat st;
	off_t left;

	if (from < 0)
		return from;
	if (fstat(from, &st) < 0)
		return -errno;
	fd = create();
	if (fd < 0)
		return fd;
	for (left = st.st_size; left > 0;) {
		ssize_t n = sendfile(fd, from, NULL, (size_t)left);

		if (n <= 0)
			return n ? -errno : -EIO;
		left -= n;
	}
	if (fchmod(fd, 0711) < 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0)
		return -errno;
	/* Reopened: with a writer left, exec would fail with ETXTBSY. */
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	return open_at(AT_FDCWD, link, O_RDONLY);
}
