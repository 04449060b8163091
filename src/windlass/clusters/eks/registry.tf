# Image repositories.

resource "aws_ecr_repository" "main" {
  for_each             = toset(var.repositories)
  name                 = replace(local.names["aws_ecr_repository.main"], "{key}", each.key)
  image_tag_mutability = "IMMUTABLE"
  force_delete         = var.repositories_force_destroy

  image_scanning_configuration {
    scan_on_push = true
  }

  encryption_configuration {
    encryption_type = "KMS"
    kms_key         = local.key_arns["registry"]
  }
}

resource "aws_ecr_lifecycle_policy" "main" {
  for_each   = toset(var.repositories)
  repository = aws_ecr_repository.main[each.key].name

  policy = jsonencode({
    rules = [{
      rulePriority = 1
      description  = "Images without a tag"
      selection    = { tagStatus = "untagged", countType = "sinceImagePushed", countUnit = "days", countNumber = 14 }
      action       = { type = "expire" }
    }]
  })
}
