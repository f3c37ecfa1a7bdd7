/* Layers: one EROFS superblock each, mounted from its file, so that all sandboxes share its pages. */
#include "launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct order {
	struct launcher *launcher;
	struct request *request;
	struct pending reply;
};

bool layer_known(const struct launcher *l, const char *id)
{
	for (unsigned i = 0; i < l->layer_count; i++)
		if (!strcmp(l->layers[i], id))
			return true;
	return false;
}

static void layer_note(struct launcher *l, const char *id)
{
	if (!layer_known(l, id) && l->layer_count < LAYER_TABLE_MAX)
		snprintf(l->layers[l->layer_count++], sizeof(l->layers[0]), "%s", id);
}

static int open_image(const struct request *r, bool direct)
{
	close_auto int fs = sys_fsopen("erofs");
	int err = fs < 0 ? fs : 0;

	if (!err)
		err = sys_fsconfig(fs, FSCONFIG_SET_STRING, "source", r->path, 0);
	if (!err && r->device)
		err = sys_fsconfig(fs, FSCONFIG_SET_STRING, "device", r->device, 0);
	/* Without it the data would lie in the page cache twice: the file's and the layer's. */
	if (!err && direct)
		err = sys_fsconfig(fs, FSCONFIG_SET_FLAG, "directio", NULL, 0);
	if (!err)
		err = sys_fsconfig(fs, FSCONFIG_SET_FLAG, "ro", NULL, 0);
	if (!err)
		err = sys_fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0);
	/* Setuid programs of images must work; their device nodes must not. */
	return err ? err : sys_fsmount(fs, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV);
}

/* Opening a pipe would wait for its writer, and a directory is found out only by reading. */
static int regular(const char *path)
{
	struct stat s;

	if (stat(path, &s) < 0)
		return -errno;
	return S_ISREG(s.st_mode) ? 0 : -EINVAL;
}

/* The store was unmounted on the host, and mounted again or only now: here its place is dead or bare. */
static bool stale(int err)
{
	return err == -ENOENT || err == -ENOTCONN || err == -ESTALE || err == -ENODEV;
}

static int look(const struct launcher *l, const char *path)
{
	int err = regular(path);

	return stale(err) && !mountns_refresh(l, path) ? regular(path) : err;
}

static int work(void *arg, struct job_result *out)
{
	const struct launcher *l = ((struct order *)arg)->launcher;
	const struct request *r = ((struct order *)arg)->request;
	close_auto int mount = -1;
	char at[96];
	int err = look(l, r->path);

	if (err)
		return job_fail(out, "file", err);
	err = r->device ? look(l, r->device) : 0;
	if (err)
		return job_fail(out, "device", err);
	mount = open_image(r, true);
	if (mount < 0) /* an older kernel, or a file system without direct reads */
		mount = open_image(r, false);
	if (mount < 0)
		return job_fail(out, "erofs", mount);
	snprintf(at, sizeof(at), "/layers/%s", r->layers.items[0]);
	if (mkdir(at, 0700) < 0 && errno != EEXIST)
		return job_fail(out, "mkdir", -errno);
	if (is_mount_point(at)) /* the same request came twice, close together */
		return 0;
	err = sys_move_mount(mount, AT_FDCWD, at);
	return err ? job_fail(out, "move", err) : 0;
}

static void done(struct job *j, struct job_result *r)
{
	struct order *o = j->owner;

	if (!r->error) {
		layer_note(o->launcher, o->request->layers.items[0]);
		reply_ok(o->launcher, &o->reply, answer());
	} else {
		const struct request *q = o->request;

		reply_fail(o->launcher, &o->reply, r->step, r->error,
			   strcmp(r->step, "device") ? q->path : q->device);
	}
	free(o->request);
	free(o);
}

static bool allowed(const struct launcher *l, const char *path)
{
	struct roots roots = l->bind_roots;

	return roots_add(&roots, l->state_dir) && path_below(path, &roots);
}

void layer_mount(struct launcher *l, struct request *r)
{
	struct order *o = calloc(1, sizeof(*o));
	struct pending reply = pending_of(l, r);
	struct failure f = {0};
	int err = o ? 0 : fail(&f, "memory", -ENOMEM, "layer");

	if (!err && layer_known(l, r->layers.items[0])) {
		reply_ok(l, &reply, answer());
		free(o);
		free(r);
		return;
	}
	if (!err && !allowed(l, r->path))
		err = fail(&f, "path", -EACCES, "%s", r->path);
	if (!err && r->device && !allowed(l, r->device))
		err = fail(&f, "path", -EACCES, "%s", r->device);
	if (!err && l->layer_count == LAYER_TABLE_MAX)
		err = fail(&f, "layer", -ENOSPC, "%d layers are mounted", LAYER_TABLE_MAX);
	if (o && !err) {
		*o = (struct order){l, r, reply};
		/* In a job: the file may lie on a lazy store that reads from far away. */
		err = job_start(&l->loop, work, o, done, o, true);
		if (!err)
			return;
		fail(&f, "fork", err, "layer");
	}
	reply_fail(l, &reply, f.step, f.error, f.text);
	free(o);
	free(r);
}

static bool used(const struct launcher *l, const char *id)
{
	/* Nobody told which layers an adopted instance has. */
	if (l->adopted)
		return true;
	for (unsigned b = 0; b < BUCKETS; b++)
		for (const struct instance *i = l->instances[b]; i; i = i->next)
			if (kept_layer(i->kept, id))
				return true;
	return false;
}

int layer_unmount(struct launcher *l, const struct request *r, struct failure *f)
{
	const char *id = r->layers.items[0];
	char at[96];
	int err;

	if (!layer_known(l, id))
		return 0;
	if (used(l, id))
		return fail(f, "layer", -EBUSY, "%s", id);
	snprintf(at, sizeof(at), "/layers/%s", id);
	err = sys_umount(at, 0);
	if (err)
		return fail(f, "umount", err, "%s", id);
	rmdir(at);
	for (unsigned i = 0; i < l->layer_count; i++)
		if (!strcmp(l->layers[i], id))
			memmove(l->layers[i], l->layers[--l->layer_count], sizeof(l->layers[0]));
	return 0;
}

void layers_recover(struct launcher *l)
{
	FILE *mounts = fopen("/proc/self/mountinfo", "re");
	char line[4096], at[65];

	if (!mounts)
		return;
	while (fgets(line, sizeof(line), mounts))
		if (sscanf(line, "%*u %*u %*s %*s /layers/%64s", at) == 1 && id_valid(at))
			layer_note(l, at);
	fclose(mounts);
}

void layers_unmount(struct launcher *l)
{
	char at[96];

	for (unsigned i = 0; i < l->layer_count; i++) {
		snprintf(at, sizeof(at), "/layers/%s", l->layers[i]);
		sys_umount(at, MNT_DETACH);
	}
	l->layer_count = 0;
}
