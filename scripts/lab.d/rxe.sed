# Changes the kernel's rxe, an RDMA device in software, into one that goes into a pod as a NIC's own does. See fetch.

# rxe_net.c: a netdev that leaves a namespace says UNREGISTER there too, but is still registered. Only its real end is
# the end of the RDMA device.
s/^\tcase NETDEV_UNREGISTER:$/&\n\t\tif (ndev->reg_state == NETREG_REGISTERED)\n\t\t\tbreak;/

# Stock rxe receives and sends in the first namespace only. So each further namespace has the two sockets that take RoCE
# packets from the kernel, and a route is looked up in the namespace of the netdev.
s/ip_route_output_key(&init_net, /ip_route_output_key(dev_net(ndev), /
s/ipv6_dst_lookup_flow(sock_net(recv_sockets.sk6->sk),/ipv6_dst_lookup_flow(dev_net(ndev),/
s/^#include <net\/udp_tunnel.h>$/&\n#include <net\/netns\/generic.h>/
/^int rxe_net_init(void)$/i\
static unsigned int rxe_sockets_id;\
\
static void __net_exit rxe_sockets_close(struct net *net)\
{\
	struct socket **sockets = net_generic(net, rxe_sockets_id);\
\
	rxe_release_udp_tunnel(sockets[0]);\
	rxe_release_udp_tunnel(sockets[1]);\
}\
\
static int __net_init rxe_sockets_open(struct net *net)\
{\
	struct socket **sockets = net_generic(net, rxe_sockets_id);\
	int i;\
\
	for (i = 0; i < 2 && !net_eq(net, &init_net); i++) {\
		struct socket *socket = rxe_setup_udp_tunnel(net, htons(ROCE_V2_UDP_DPORT), i);\
\
		if (!IS_ERR(socket))\
			sockets[i] = socket;\
	}\
	return 0;\
}\
\
static struct pernet_operations rxe_sockets_ops = {\
	.init = rxe_sockets_open,\
	.exit = rxe_sockets_close,\
	.id = &rxe_sockets_id,\
	.size = 2 * sizeof(struct socket *),\
};\

/^void rxe_net_exit(void)$/i\
static struct pernet_operations rxe_sockets_ops;\

s/^\tunregister_netdevice_notifier(&rxe_net_notifier);$/&\n\tunregister_pernet_subsys(\&rxe_sockets_ops);/
/^int rxe_net_init(void)$/,/^}/ s/^\treturn 0;$/\treturn register_pernet_subsys(\&rxe_sockets_ops);/

# rxe_qp.c: a move takes the device's clients away and brings them back (rdma_dev_change_netns). The one queue pair
# for management is made anew then, which is refused while the first is on the books (rxe_qp_chk_init).
/^static void rxe_qp_do_cleanup(/,/^}/ s/^\tqp->qp_timeout_jiffies = 0;$/&\n\tif (qp_type(qp) == IB_QPT_GSI)\n\t\tto_rdev(qp->ibqp.device)->port.qp_gsi_index = 0;/

# rxe_verbs.c: a device moves only if open files of it can be cut off (ib_device_set_netns_put). No file is open here.
s/^static const struct ib_device_ops rxe_dev_ops = {$/static void rxe_disassociate_ucontext(struct ib_ucontext *context)\n{\n}\n\n&\n\t.disassociate_ucontext = rxe_disassociate_ucontext,/

# And in sysfs it is below its NIC, where RDMA devices of a PCI function are looked for.
s/^\tib_set_device_ops(dev, &rxe_dev_ops);$/&\n\tdev->dev.parent = ndev->dev.parent;/
