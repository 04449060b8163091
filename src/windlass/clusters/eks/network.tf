# A VPC across the zones: public subnets for NAT and load balancers, private subnets for nodes and pods. With vpc_id, an
# existing one.

data "aws_availability_zones" "available" {
  #checkov:skip=CKV_AWS_394:Only the first zone_count of the sorted names are used; the variable zones fixes them.
  state = "available"
  # EKS does not support control planes in these zones.
  exclude_zone_ids = ["use1-az3", "usw1-az2", "cac1-az3"]

  # Excludes Local Zones and Wavelength Zones.
  filter {
    name   = "opt-in-status"
    values = ["opt-in-not-required"]
  }
}

# An existing VPC and its subnets are only read: no resource of this configuration changes or tags them.
data "aws_vpc" "existing" {
  count = 1 - local.own_vpc
  id    = var.vpc_id
}

data "aws_subnet" "existing" {
  for_each = toset(var.subnet_ids)
  id       = each.key

  lifecycle {
    postcondition {
      condition     = self.vpc_id == var.vpc_id
      error_message = "${self.id} is in ${self.vpc_id}, not in ${var.vpc_id}: list subnets of one VPC."
    }
  }
}

locals {
  own_vpc      = var.vpc_id == "" ? 1 : 0
  has_internet = local.own_vpc == 1 && var.nat != "none"

  zones = local.own_vpc == 0 ? distinct([for id in var.subnet_ids : data.aws_subnet.existing[id].availability_zone]) : (
    length(var.zones) > 0 ? var.zones : slice(
      sort(data.aws_availability_zones.available.names), 0, min(var.zone_count, length(data.aws_availability_zones.available.names))
    )
  )
  # Six eighths of the range are private, the last eighth is public: appending a zone does not move existing subnets.
  private_cidrs = { for index, zone in local.zones : zone => cidrsubnet(var.vpc_cidr, 3, index) if local.own_vpc == 1 }
  public_cidrs  = { for index, zone in local.zones : zone => cidrsubnet(cidrsubnet(var.vpc_cidr, 3, 7), 3, index) if local.has_internet }
  nat_zones     = !local.has_internet ? [] : var.nat == "one" ? slice(local.zones, 0, 1) : local.zones

  vpc_id  = one(concat(aws_vpc.main[*].id, data.aws_vpc.existing[*].id))
  vpc_arn = one(concat(aws_vpc.main[*].arn, data.aws_vpc.existing[*].arn))
  vpc_cidrs = local.own_vpc == 1 ? [var.vpc_cidr] : [
    for association in data.aws_vpc.existing[0].cidr_block_associations : association.cidr_block
  ]
  # Subnets of nodes by zone. An existing VPC may have several in a zone; the first one gets mount targets.
  subnets = {
    for zone in local.zones : zone => concat(
      [for key, subnet in aws_subnet.private : subnet.id if key == zone],
      [for id in var.subnet_ids : id if data.aws_subnet.existing[id].availability_zone == zone],
    )
  }
  subnet_ids  = flatten([for zone in local.zones : local.subnets[zone]])
  subnet_arns = concat([for subnet in aws_subnet.private : subnet.arn], [for subnet in data.aws_subnet.existing : subnet.arn])
}

resource "aws_vpc" "main" {
  count                = local.own_vpc
  cidr_block           = var.vpc_cidr
  enable_dns_hostnames = true
  enable_dns_support   = true
  tags                 = { Name = local.names["aws_vpc.main"] }
}

# The default security group stays without rules: nothing uses it.
resource "aws_default_security_group" "main" {
  count  = local.own_vpc
  vpc_id = aws_vpc.main[0].id
  tags   = { Name = local.names["aws_default_security_group.main"] }
}

resource "aws_internet_gateway" "main" {
  count  = local.has_internet ? 1 : 0
  vpc_id = aws_vpc.main[0].id
  tags   = { Name = local.names["aws_internet_gateway.main"] }
}

resource "aws_subnet" "private" {
  for_each          = local.private_cidrs
  vpc_id            = aws_vpc.main[0].id
  availability_zone = each.key
  cidr_block        = each.value

  tags = {
    Name                              = replace(local.names["aws_subnet.private"], "{key}", each.key)
    "kubernetes.io/role/internal-elb" = "1"
    "karpenter.sh/discovery"          = var.name
  }
}

resource "aws_subnet" "public" {
  for_each          = local.public_cidrs
  vpc_id            = aws_vpc.main[0].id
  availability_zone = each.key
  cidr_block        = each.value

  tags = {
    Name                     = replace(local.names["aws_subnet.public"], "{key}", each.key)
    "kubernetes.io/role/elb" = "1"
  }
}

resource "aws_eip" "nat" {
  for_each = toset(local.nat_zones)
  domain   = "vpc"
  tags     = { Name = replace(local.names["aws_eip.nat"], "{key}", each.key) }

  depends_on = [aws_internet_gateway.main]
}

resource "aws_nat_gateway" "main" {
  for_each      = toset(local.nat_zones)
  allocation_id = aws_eip.nat[each.key].id
  subnet_id     = aws_subnet.public[each.key].id
  tags          = { Name = replace(local.names["aws_nat_gateway.main"], "{key}", each.key) }

  depends_on = [aws_internet_gateway.main]
}

resource "aws_route_table" "public" {
  count  = local.has_internet ? 1 : 0
  vpc_id = aws_vpc.main[0].id
  tags   = { Name = local.names["aws_route_table.public"] }
}

resource "aws_route" "public" {
  count                  = local.has_internet ? 1 : 0
  route_table_id         = aws_route_table.public[0].id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.main[0].id
}

# Keys come from variables and zones, not from other resources, so that `terraform import` can resolve them.
resource "aws_route_table_association" "public" {
  for_each       = local.public_cidrs
  route_table_id = aws_route_table.public[0].id
  subnet_id      = aws_subnet.public[each.key].id
}

# One route table per zone even with a single NAT gateway, so that a change to several gateways replaces only routes.
resource "aws_route_table" "private" {
  for_each = local.private_cidrs
  vpc_id   = aws_vpc.main[0].id
  tags     = { Name = replace(local.names["aws_route_table.private"], "{key}", each.key) }
}

resource "aws_route" "private" {
  for_each               = local.has_internet ? local.private_cidrs : {}
  route_table_id         = aws_route_table.private[each.key].id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = aws_nat_gateway.main[var.nat == "one" ? local.zones[0] : each.key].id
}

resource "aws_route_table_association" "private" {
  for_each       = local.private_cidrs
  route_table_id = aws_route_table.private[each.key].id
  subnet_id      = aws_subnet.private[each.key].id
}

# Keeps S3 traffic off the NAT gateway, which would cost 0.045 USD/GB; without one, it is the only way to S3.
resource "aws_vpc_endpoint" "s3" {
  count             = local.own_vpc
  vpc_id            = aws_vpc.main[0].id
  service_name      = "com.amazonaws.${var.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = concat(aws_route_table.public[*].id, [for table in aws_route_table.private : table.id])
  tags              = { Name = local.names["aws_vpc_endpoint.s3"] }
}

resource "aws_security_group" "endpoint" {
  count       = length(var.endpoint_services) > 0 ? 1 : 0
  name        = local.names["aws_security_group.endpoint"]
  description = "Interface endpoints of ${var.name}: from its nodes alone"
  vpc_id      = local.vpc_id
  tags        = { Name = local.names["aws_security_group.endpoint"] }
}

resource "aws_vpc_security_group_ingress_rule" "endpoint" {
  count                        = length(var.endpoint_services) > 0 ? 1 : 0
  security_group_id            = aws_security_group.endpoint[0].id
  referenced_security_group_id = aws_security_group.node.id
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
  description                  = "HTTPS from nodes"
  tags                         = { Name = "${local.names["aws_security_group.endpoint"]}-https" }
}

resource "aws_vpc_endpoint" "interface" {
  for_each            = toset(var.endpoint_services)
  vpc_id              = local.vpc_id
  service_name        = "com.amazonaws.${var.region}.${each.key}"
  vpc_endpoint_type   = "Interface"
  private_dns_enabled = true
  subnet_ids          = [for zone in local.zones : local.subnets[zone][0]]
  security_group_ids  = [aws_security_group.endpoint[0].id]
  tags                = { Name = replace(local.names["aws_vpc_endpoint.interface"], "{key}", each.key) }
}

# The owner of an existing VPC decides what of it is logged.
resource "aws_flow_log" "main" {
  count           = local.own_vpc
  vpc_id          = aws_vpc.main[0].id
  traffic_type    = "REJECT"
  iam_role_arn    = aws_iam_role.flow[0].arn
  log_destination = aws_cloudwatch_log_group.flow[0].arn
  tags            = { Name = local.names["aws_flow_log.main"] }
}

# Nodes have this group in addition to the cluster's group from EKS. EFA requires rules for the group in both directions.
resource "aws_security_group" "node" {
  name        = local.names["aws_security_group.node"]
  description = "Nodes of ${var.name}: all traffic between them, and outwards"
  vpc_id      = local.vpc_id

  tags = {
    Name                     = local.names["aws_security_group.node"]
    "karpenter.sh/discovery" = var.name
  }
}

resource "aws_vpc_security_group_ingress_rule" "node_self" {
  security_group_id            = aws_security_group.node.id
  referenced_security_group_id = aws_security_group.node.id
  ip_protocol                  = "-1"
  description                  = "All from nodes, EFA too"
  tags                         = { Name = "${local.names["aws_security_group.node"]}-self" }
}

resource "aws_vpc_security_group_egress_rule" "node_self" {
  security_group_id            = aws_security_group.node.id
  referenced_security_group_id = aws_security_group.node.id
  ip_protocol                  = "-1"
  description                  = "All to nodes, EFA too"
  tags                         = { Name = "${local.names["aws_security_group.node"]}-self" }
}

resource "aws_vpc_security_group_egress_rule" "node_all" {
  security_group_id = aws_security_group.node.id
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "-1"
  description       = "Images, packages and the services of AWS"
  tags              = { Name = "${local.names["aws_security_group.node"]}-outwards" }
}

# The proxy's environment for nodes, controllers and the pods of runs. Names match subdomains too.
locals {
  no_proxy = concat(
    ["localhost", "127.0.0.1", "169.254.169.254", "169.254.170.23", ".svc", ".cluster.local"],
    # EKS takes the addresses of Services from one of these ranges.
    ["10.100.0.0/16", "172.20.0.0/16"],
    local.vpc_cidrs,
    ["${var.region}.eks.${data.aws_partition.current.dns_suffix}"],
    local.own_vpc == 1 ? ["s3.${var.region}.${data.aws_partition.current.dns_suffix}"] : [],
    [for service in var.endpoint_services : "${join(".", reverse(split(".", service)))}.${var.region}.${
      service == "eks-auth" ? "api.aws" : data.aws_partition.current.dns_suffix
    }"],
    var.no_proxy,
  )
  proxy_environment = var.proxy == "" ? {} : {
    HTTP_PROXY = var.proxy, HTTPS_PROXY = var.proxy, NO_PROXY = join(",", local.no_proxy)
  }
}
