# FSx for Lustre in the zone of the GPU nodes, linked to a prefix of the bucket.

locals {
  # The folder linked to the bucket: FSX_PATH in clusters/eks/outputs.py.
  fsx_path = "/"
}

resource "aws_vpc_security_group_ingress_rule" "lustre" {
  for_each = var.fsx == null ? {} : {
    nodes = aws_security_group.node.id
    # Traffic between the servers of the file system.
    self = aws_security_group.filesystem[0].id
  }
  security_group_id            = aws_security_group.filesystem[0].id
  referenced_security_group_id = each.value
  ip_protocol                  = "tcp"
  from_port                    = 988
  to_port                      = 1023
  description                  = "Lustre from ${each.key}"
  tags                         = { Name = "${local.names["aws_security_group.filesystem"]}-lustre-${each.key}" }
}

resource "aws_vpc_security_group_egress_rule" "lustre" {
  count                        = var.fsx == null ? 0 : 1
  security_group_id            = aws_security_group.filesystem[0].id
  referenced_security_group_id = aws_security_group.filesystem[0].id
  ip_protocol                  = "tcp"
  from_port                    = 988
  to_port                      = 1023
  description                  = "Lustre between its servers"
  tags                         = { Name = "${local.names["aws_security_group.filesystem"]}-lustre" }
}

resource "aws_fsx_lustre_file_system" "main" {
  #checkov:skip=CKV_AWS_190:SCRATCH_2 does not support customer keys; PERSISTENT_2 gets one.
  count                       = var.fsx == null ? 0 : 1
  storage_capacity            = var.fsx.size_gib
  deployment_type             = var.fsx.deployment
  per_unit_storage_throughput = var.fsx.deployment == "PERSISTENT_2" ? coalesce(var.fsx.throughput, 125) : null
  subnet_ids                  = [local.subnets[local.gpu_zone][0]]
  security_group_ids          = [aws_security_group.filesystem[0].id]
  kms_key_id                  = var.fsx.deployment == "PERSISTENT_2" ? local.key_arns["file_systems"] : null
  file_system_type_version    = "2.15"
  data_compression_type       = "LZ4"
  # File systems linked to a bucket do not support backups; exported files are in the bucket.
  automatic_backup_retention_days = var.fsx.deployment == "PERSISTENT_2" ? 0 : null
  skip_final_backup               = true
  tags                            = { Name = local.names["aws_fsx_lustre_file_system.main"] }

  log_configuration {
    level       = "WARN_ERROR"
    destination = aws_cloudwatch_log_group.fsx[0].arn
  }

  lifecycle {
    # FSx does not return these attributes: after an import, Terraform would replace the file system and lose its files.
    ignore_changes = [security_group_ids]
  }
}

resource "aws_fsx_data_repository_association" "main" {
  count                            = var.fsx == null ? 0 : 1
  file_system_id                   = aws_fsx_lustre_file_system.main[0].id
  file_system_path                 = local.fsx_path
  data_repository_path             = "s3://${local.bucket}/${trimprefix(var.fsx.import_prefix, "/")}"
  batch_import_meta_data_on_create = true
  delete_data_in_filesystem        = false
  tags                             = { Name = local.names["aws_fsx_data_repository_association.main"] }

  s3 {
    auto_import_policy {
      events = ["NEW", "CHANGED"]
    }
    dynamic "auto_export_policy" {
      for_each = var.fsx.export ? [1] : []
      content {
        # Without DELETED, a file deleted from the file system remains in the bucket.
        events = var.fsx.export_deleted ? ["NEW", "CHANGED", "DELETED"] : ["NEW", "CHANGED"]
      }
    }
  }

  depends_on = [aws_s3_bucket_policy.main]
}
