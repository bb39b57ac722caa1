/* Preloaded into a perftest program that polls without end: yields the processor after an empty poll. On
 * a machine of one processor the peer and the software device then run at once, not at the end of a time
 * slice.
 *
 * ib_write_lat also polls its memory, in a loop that calls nothing. It asks for the completion of its own
 * write just before. That answer is held back, yielding, until the peer's write has come, so the loop
 * finds it at the first look. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>

#include <infiniband/verbs.h>

#undef ibv_reg_mr

/* After the last exchange nothing more comes. So many yields last far longer than a round trip. */
enum { MOST_YIELDS = 10000 };

static int (*device_poll)(struct ibv_cq *, int, struct ibv_wc *);
static int (*device_post)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
static uintptr_t buffer, half;	    /* what ib_write_lat sends from, and behind it what its peer writes to */
static const volatile char *landing; /* the byte it looks at */
static char before;		    /* what stood there when it last wrote */

static int poll_or_yield(struct ibv_cq *queue, int most, struct ibv_wc *into)
{
	int found = device_poll(queue, most, into);

	if (found == 0)
		sched_yield();
	if (found > 0 && landing)
		for (int yields = 0; *landing == before && yields < MOST_YIELDS; yields++)
			sched_yield();
	return found;
}

static int post_and_remember(struct ibv_qp *pair, struct ibv_send_wr *work, struct ibv_send_wr **bad)
{
	uintptr_t last = work->sg_list->addr + work->sg_list->length - 1;

	if (work->opcode == IBV_WR_RDMA_WRITE && last - buffer < half) {
		landing = (const volatile char *)(last + half);
		before = *landing;
	}
	return device_post(pair, work, bad);
}

static int polls_memory(void)
{
	return strcmp(program_invocation_short_name, "ib_write_lat") == 0;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct ibv_context *(*open)(struct ibv_device *) = dlsym(RTLD_NEXT, "ibv_open_device");
	struct ibv_context *context = open(device);

	if (context && context->ops.poll_cq != poll_or_yield) {
		device_poll = context->ops.poll_cq;
		device_post = context->ops.post_send;
		context->ops.poll_cq = poll_or_yield;
		if (polls_memory())
			context->ops.post_send = post_and_remember;
	}
	return context;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *domain, void *address, size_t length, int access)
{
	struct ibv_mr *(*reg)(struct ibv_pd *, void *, size_t, int) = dlsym(RTLD_NEXT, "ibv_reg_mr");

	buffer = (uintptr_t)address;
	half = length / 2;
	return reg(domain, address, length, access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *domain, void *address, size_t length, uint64_t iova, unsigned int access)
{
	struct ibv_mr *(*reg)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int) = dlsym(RTLD_NEXT, "ibv_reg_mr_iova2");

	buffer = (uintptr_t)address;
	half = length / 2;
	return reg(domain, address, length, iova, access);
}
