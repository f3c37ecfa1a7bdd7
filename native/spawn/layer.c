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

/* Layers whose data comes through /blobs are told by their id, so that a later launcher knows them too. */
static bool is_lazy(const char *id)
{
	size_t n = strlen(id);

	return n > 2 && !strcmp(id + n - 2, "-v");
}

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

	o->launcher->layers_mounting--;
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

static int check(const struct launcher *l, const struct request *r, struct failure *f)
{
	static const struct roots blobs = {.count = 1, .paths = {"/blobs"}};
	const char *id = r->layers.items[0];
	bool lazy = r->device && path_below(r->device, &blobs);

	if (lazy != is_lazy(id))
		return fail(f, "layer", -EINVAL, "%s: ids of layers on /blobs, and no others, end in -v", id);
	if (lazy && l->blobs < 0)
		return fail(f, "blobs", -ENOTCONN, "%s: there is no session", id);
	if (!allowed(l, r->path))
		return fail(f, "path", -EACCES, "%s", r->path);
	if (r->device && !lazy && !allowed(l, r->device))
		return fail(f, "path", -EACCES, "%s", r->device);
	return 0;
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
	if (!err)
		err = check(l, r, &f);
	/* One that is not noted could never be unmounted. */
	if (!err && l->layer_count + l->layers_mounting >= LAYER_TABLE_MAX)
		err = fail(&f, "layer", -ENOSPC, "%d layers are mounted", LAYER_TABLE_MAX);
	if (o && !err) {
		*o = (struct order){l, r, reply};
		/* In a job: the file may lie on a lazy store that reads from far away. */
		err = job_start(&l->loop, work, o, done, o, 1);
		if (!err) {
			l->layers_mounting++;
			return;
		}
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

static void layer_forget(struct launcher *l, const char *id)
{
	for (unsigned i = 0; i < l->layer_count; i++)
		if (!strcmp(l->layers[i], id))
			memmove(l->layers[i], l->layers[--l->layer_count], sizeof(l->layers[0]));
}

static int unmount(const char *id, int flags)
{
	char at[96];
	int err;

	snprintf(at, sizeof(at), "/layers/%s", id);
	err = sys_umount(at, flags);
	if (!err)
		rmdir(at);
	return err;
}

static int unmount_work(void *arg, struct job_result *out)
{
	const struct request *r = ((struct order *)arg)->request;
	int err = unmount(r->layers.items[0], 0);

	return err ? job_fail(out, "umount", err) : 0;
}

static void unmount_done(struct job *j, struct job_result *r)
{
	struct order *o = j->owner;
	const char *id = o->request->layers.items[0];

	if (!r->error) {
		layer_forget(o->launcher, id);
		reply_ok(o->launcher, &o->reply, answer());
	} else {
		reply_fail(o->launcher, &o->reply, r->step, r->error, id);
	}
	free(o->request);
	free(o);
}

/* Its last pages may be on their way from afar, and the unmounting waits for them. */
static int unmount_lazy(struct launcher *l, struct request *r, struct pending reply, struct failure *f)
{
	struct order *o = calloc(1, sizeof(*o));
	int err;

	if (!o)
		return fail(f, "memory", -ENOMEM, "layer");
	*o = (struct order){l, r, reply};
	err = job_start(&l->loop, unmount_work, o, unmount_done, o, 1);
	if (err)
		free(o);
	return err ? fail(f, "fork", err, "layer") : 0;
}

void layer_unmount(struct launcher *l, struct request *r)
{
	const char *id = r->layers.items[0];
	struct pending reply = pending_of(l, r);
	struct failure f = {0};
	int err = 0;

	if (layer_known(l, id) && used(l, id)) {
		err = fail(&f, "layer", -EBUSY, "%s", id);
	} else if (layer_known(l, id) && is_lazy(id)) {
		err = unmount_lazy(l, r, reply, &f);
		if (!err)
			return;
	} else if (layer_known(l, id)) {
		err = unmount(id, 0);
		if (err)
			fail(&f, "umount", err, "%s", id);
		else
			layer_forget(l, id);
	}
	if (err)
		reply_fail(l, &reply, f.step, f.error, f.text);
	else
		reply_ok(l, &reply, answer());
	free(r);
}

void layers_leave_blobs(struct launcher *l)
{
	for (unsigned i = l->layer_count; i-- > 0;) {
		char id[sizeof(l->layers[0])];

		snprintf(id, sizeof(id), "%s", l->layers[i]);
		if (is_lazy(id) && !unmount(id, MNT_DETACH))
			layer_forget(l, id);
	}
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
	for (unsigned i = 0; i < l->layer_count; i++)
		unmount(l->layers[i], MNT_DETACH);
	l->layer_count = 0;
}
