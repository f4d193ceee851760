/* rdma_cm.h: what the peers that use librdmacm share. The private data of a connection begins with the
 * transport's MAGIC (define it first), and that of put_sizes has the number and size of blocks. */
#include <endian.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>

static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener, *id;
static uint32_t blocks, size;

enum { REQUEST = 12 }; /* bytes of magic, version, number and size */

static inline void put_sizes(uint8_t *b)
{
	uint16_t n = htobe16(blocks);
	uint32_t s = htobe32(size);
	memcpy(b, MAGIC "\1\0", 6);
	memcpy(b + 6, &n, 2);
	memcpy(b + 8, &s, 4);
}

static inline int get_sizes(const uint8_t *b, size_t len, uint32_t *n, uint32_t *s)
{
	uint16_t nn;
	uint32_t ss;
	if (len < REQUEST || memcmp(b, MAGIC "\1", 5)) return -1;
	memcpy(&nn, b + 6, 2);
	memcpy(&ss, b + 8, 4);
	*n = be16toh(nn);
	*s = be32toh(ss);
	return 0;
}

/* event waits for one event of the connection manager; -1: another one arrived, or none in time. */
static int event(enum rdma_cm_event_type want, int64_t until, struct rdma_cm_event **e)
{
	struct pollfd p = {.fd = channel->fd, .events = POLLIN};
	int64_t left = until - now();
	if (left < 0 || poll(&p, 1, left / 1000) <= 0) {
		errno = ETIMEDOUT;
		return -1;
	}
	if (rdma_get_cm_event(channel, e)) return -1;
	if ((*e)->event == want) return 0;
	errno = (*e)->event == RDMA_CM_EVENT_REJECTED ? ECONNREFUSED : EPROTO;
	return -1;
}

/* step waits for an event without contents. */
static int step(enum rdma_cm_event_type want, int64_t until)
{
	struct rdma_cm_event *e = NULL;
	int r = event(want, until, &e);
	if (e) rdma_ack_cm_event(e);
	return r;
}

/* gone returns whether the peer has disconnected. */
static inline int gone(void)
{
	struct pollfd p = {.fd = channel->fd, .events = POLLIN};
	struct rdma_cm_event *e;
	int r = 0;
	if (poll(&p, 1, 0) > 0 && !rdma_get_cm_event(channel, &e)) {
		r = e->event == RDMA_CM_EVENT_DISCONNECTED;
		rdma_ack_cm_event(e);
	}
	return r;
}

/* do_listen executes the command listen, on all IPv4 and IPv6 addresses. */
static void do_listen(void)
{
	uint16_t port = num("port", 7480);
	struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
	blocks = num("blocks", 4);
	size = num("size", 4096);
	if (!channel && !(channel = rdma_create_event_channel())) fail("event channel");
	else if (rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) || rdma_bind_addr(listener, (struct sockaddr *)&a) || rdma_listen(listener, 16)) fail("listen");
	else ok();
}

/* resolve resolves the address and port in the current line and creates id. */
static int resolve(int64_t until)
{
	struct addrinfo *ai = NULL;
	if (!channel && !(channel = rdma_create_event_channel())) return fail("event channel");
	if (getaddrinfo(text("addr", ""), text("port", "7480"), &(struct addrinfo){.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST}, &ai)) return fail("address");
	int r = rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) || rdma_resolve_addr(id, NULL, ai->ai_addr, 5000);
	freeaddrinfo(ai);
	if (r || step(RDMA_CM_EVENT_ADDR_RESOLVED, until) || rdma_resolve_route(id, 5000) || step(RDMA_CM_EVENT_ROUTE_RESOLVED, until)) return fail("resolve");
	return 0;
}
